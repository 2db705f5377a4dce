"""NSQ's formats, sans I/O: bytes to values and back, with no event loop and no clock."""
