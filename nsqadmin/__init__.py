"""nsqadmin: the console of a cluster, for browsers and scripts, in Python.

__main__, daemon   the command; the composition root
options            the flags: those of the Go nsqadmin, and ours
cluster            finds the nodes, collects their figures, keeps an hour of them; commands to nodes
access             the rights of callers; the audit trail
api                the Go nsqadmin's API, /api/v2 for the page, the page itself

Nothing imports it. May import console, nsqd.config, nsqd.http, nsqd.protocol, nsqd.runtime.
"""
