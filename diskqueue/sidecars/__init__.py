"""Small files beside the segments of a queue, which go-diskqueue ignores and which may be missing.

identity    a file with one random name: of a queue's generation, of a node
generation  Generation: tells a queue from another of the same name before or after it

Called by queue and sync_job, nsqd's archive and data path, and Spark's readers; blocks, in any
thread. Imports layout.
"""
