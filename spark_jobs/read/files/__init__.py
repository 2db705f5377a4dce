"""nsqd's data directories: local ones, copies, and remote ones through pyarrow.fs.

directory.py   list and open files            catalog.py     find the queues of directories
queue.py       one queue: ranges, faults      plan.py        from queues to partitions
scan.py        read slices, on an executor    corruption.py  the table corrupt_records
lanes.py       where records start            records.py     records as Arrow columns
Called by read/reader.py, read/stream.py and the jobs. May import diskqueue and read's options,
columns and predicate.
"""
