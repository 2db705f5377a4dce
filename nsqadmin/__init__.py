"""nsqadmin: the console of a cluster, for browsers and scripts, in Python.

__main__, daemon   the command; the composition root
options            the flags: those of the Go nsqadmin, and ours
cluster            which nodes there are, what they say, an hour of it; what they are told to do
access             who may do what; what was done
api                the Go nsqadmin's API, /api/v2 for the page, the page itself

Nothing imports it. May import console, nsqd.config, nsqd.http, nsqd.protocol, nsqd.runtime.
"""
