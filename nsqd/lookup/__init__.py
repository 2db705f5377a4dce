"""nsqlookupd's client."""
