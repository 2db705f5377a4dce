"""Queues as rows of a DataFrame or a stream.

options.py, kafka_names.py  the options of a read     columns.py   the columns of a message
queue.py      one queue, as a look found it; inventory.py finds those that are selected
plan.py       from queues to partitions: bounds.py by offset and time, predicate.py by filters
reader.py     a batch read
stream.py     a tail: look.py finds where queues end, metrics.py how far; offsets.py for checkpoints
skipped.py    the damage that tasks of a stream skip, counted on the driver
files/        queues in directories, and reading of segments         fleet/  queues of running nodes
Called by source.py and by the jobs. May import diskqueue, option_values, object_store, tls, tally.
"""
