"""nsqd's data directories: local ones, copies, and remote ones through pyarrow.fs.

directory.py   list and open files            catalog.py     find the queues of directories
scan.py        read slices, on an executor    records.py     where records start; as Arrow columns
corruption.py  the table corrupt_records      identity.py    which queue it is
open_segments.py  segments that a stream keeps open
Called by read/reader.py, read/stream.py and the jobs. May import diskqueue and read's options,
columns and predicate.
"""
