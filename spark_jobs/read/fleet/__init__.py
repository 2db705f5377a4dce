"""Nodes over HTTP: nsqd's routes for analysis (docs/contract/analytics.md).

options.py    which nodes, and how to reach them     client.py       one node: requests, retries
lookup.py     the nodes that nsqlookupd knows        remote_file.py  a segment, read ahead
snapshot.py   snapshots of nodes as queues           leases.py       who keeps snapshots alive
manifest.py   the manifests of nodes as queues, for streams and `nsqd-spark queues`
latency.py    from publish to finish, as nodes measure it
Called by read/inventory.py, look.py and files/scan.py. May import read's options, queue; the
standard library's HTTP is enough. Executors fetch from the nodes, not through the driver.
"""
