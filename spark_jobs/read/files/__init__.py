"""nsqd's data directories: local ones, copies, and remote ones through pyarrow.fs.

directory.py   list and open files            catalog.py     find the queues of directories
scan.py        read slices, on an executor    records.py     where records start; as Arrow columns
corruption.py  the table corrupt_records      identity.py    which queue it is
due.py         due times of records           nsqd_dat.py    queues that nsqd knows
open_segments.py  segments that a stream keeps open   checksums.py  what these deny
Called by the modules of read/ and the jobs. May import diskqueue, object_store,
fleet's files and read's options, columns, queue and predicate.
"""
