"""nsqd: the message daemon of NSQ, in Python.

__main__, daemon    the command; the composition root: start, serve, stop
settings, node      options for each part; the daemon as HTTP sees it; reload: SIGHUP; drain
config              options, flags, logs         protocol   bytes to values and back, no I/O
broker              topics, channels, queues: the rules, without sockets
tcp                 the V2 door                  http       HTTP/1.1, server and client
api, stats          the routes and figures that HTTP offers; analytics: snapshots of queues
lookup              registration with nsqlookupd    runtime    event loop, sockets, TLS, data path
client, cli         the asyncio client, the command `nsq`; nothing above imports them
"""

__version__ = "0.1.0"

# The NSQ release whose behaviour this nsqd has; clients, nsqadmin and scripts compare it.
PROTOCOL_VERSION = "1.3.0"
