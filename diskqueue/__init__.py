"""A persistent FIFO of records in segment files, byte-compatible with go-diskqueue 1.1.

Synchronous and without threads of its own; `queue` explains how it works.
"""

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
    "CorruptMetadataError",
    "CorruptSegmentError",
    "DiskQueue",
    "DiskQueueError",
    "QueueClosedError",
    "ReadRecords",
    "RecordTooLargeError",
    "SyncJob",
]
