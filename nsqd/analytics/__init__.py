"""Queues served for analysis: snapshots under a lease, and the manifest (analytics.md).

query      Query: which queues a request names
leases     Lease, Leases: what a snapshot listed stays readable for a time, within bounds
parts      PartWriter: messages of memory as files; spill: the nameless file that has them
segments   SegmentBook: segments as readers are told of them; threads: for what blocks
snapshot   Snapshots: takes one after the other, each queue at one moment
manifest   Manifest: segments and positions, for polling; and archives
service    Analytics: all of it, as the daemon makes it and the API uses it
Called by nsqd.api. Imports broker, diskqueue, runtime; blocking work is done in its own threads.
"""
