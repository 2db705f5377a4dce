"""Which records of a queue are finished.

progress   how far a queue is consumed: the oldest unfinished record, and those finished behind it
sidecar    the file `.finished`, in which a sync notes the latter, and when it is believed
intervals  Intervals: the set of numbers that both are made of

Called by queue, reader, recovery, sync_job and views, nsqd's archive and Spark's readers.
`progress` imports reader, recovery and writer, the others layout, segment and errors at most.
"""
