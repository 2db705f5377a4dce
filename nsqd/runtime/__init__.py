"""Event loop, listening, TLS, data path and disk watch."""
