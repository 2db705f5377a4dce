"""nsqlookupd: the discovery daemon of NSQ, in Python."""
