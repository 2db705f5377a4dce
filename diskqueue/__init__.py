"""A persistent FIFO of records in segment files, byte-compatible with go-diskqueue 1.1.

`queue` (DiskQueue, and how all of this works) appends through `writer`, large or slow ones by an
`append_job`, reads through `reader`, keeps count of finished records in `progress`, and is synced
by a `sync_job` when its owner says so; `recovery` opens it.
On disk: `layout` (names, metadata), `segment` (records), `checksums` (of records), `sidecar`
(finished records), `sidecars` (identity), `envelope` (the message in a record). `intervals` is the
set of finished records, `salvage` finds records at damage, `views` is for readers from outside,
`tools` and `__main__` are `python -m diskqueue`; `errors`. Called by nsqd's broker, Spark's readers
and the command line. Synchronous; its only threads make fsyncs. Imports the standard library only.
"""

from diskqueue.append_job import AppendJob, RecordChunk
from diskqueue.errors import (
    CorruptMetadataError,
    CorruptSegmentError,
    DiskQueueError,
    QueueClosedError,
    RecordTooLargeError,
)
from diskqueue.queue import DiskQueue
from diskqueue.reader import ReadRecords
from diskqueue.sync_job import SyncJob

__all__ = [
    "AppendJob",
    "CorruptMetadataError",
    "CorruptSegmentError",
    "DiskQueue",
    "DiskQueueError",
    "QueueClosedError",
    "ReadRecords",
    "RecordChunk",
    "RecordTooLargeError",
    "SyncJob",
]
