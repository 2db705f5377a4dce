"""A persistent FIFO of records in segment files, byte-compatible with go-diskqueue 1.1.

`queue` (DiskQueue, and how all of this works) appends through `writer`, large or slow ones by an
`append_job`, reads through `reader`, keeps count of `finished` records, and is synced by a
`sync_job` when its owner says so; `recovery` opens it.
On disk: `layout` (names, metadata), `segment` (records), `checksums` (of records), `identity`
(random names), `envelope` (the message in a record), `_compiled` (loops over records). `salvage`
finds records at damage, `views` is for readers from outside, `tools` and `__main__` are `python -m
diskqueue`; `errors`.
Called by nsqd's broker, Spark's readers and the command line. Imports no other package but isal.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diskqueue.append_job import AppendJob, RecordChunk
    from diskqueue.errors import (
        CorruptMetadataError,
        CorruptSegmentError,
        DiskQueueError,
        QueueClosedError,
        RecordTooLargeError,
        TailUnknownError,
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
    "TailUnknownError",
]

# The module of each name, imported with its first use: those who want the envelope, or text for
# people, pay for no queue.
_MODULES = {
    "AppendJob": "append_job",
    "CorruptMetadataError": "errors",
    "CorruptSegmentError": "errors",
    "DiskQueue": "queue",
    "DiskQueueError": "errors",
    "QueueClosedError": "errors",
    "ReadRecords": "reader",
    "RecordChunk": "append_job",
    "RecordTooLargeError": "errors",
    "SyncJob": "sync_job",
    "TailUnknownError": "errors",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
