"""Queues as rows of a DataFrame or a stream.

options.py    the options of a read         columns.py   the columns of a message
predicate.py  filters pushed down by Spark   queue.py     one queue, as a look found it
plan.py       from queues to partitions      reader.py    a batch read
stream.py     a tail: look.py finds where queues end, offsets.py is what a checkpoint holds
files/        the one storage: nsqd's files
Called by source.py and by the jobs. A storage is a planner whose partitions read themselves; a
second one is a folder beside files/ that reader.py chooses. May import diskqueue, option_values.
"""
