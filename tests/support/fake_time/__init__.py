"""A client's whole world in fake time: a day of it passes in seconds.

loop: an event loop that jumps to its next timer, and a network in memory. nsqd, lookupd: models of
the two daemons, as far as a client can see them. Nothing here imports what it tests.
"""
