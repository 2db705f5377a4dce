"""The errors of a disk queue beyond `OSError`; each class says when it is raised.

DiskQueueError
 +-- RecordTooLargeError    the caller's record is outside the size limits
 +-- QueueClosedError       the queue was closed or deleted
 +-- TailUnknownError       the last records can't be found without reading all
 +-- CorruptMetadataError   a metadata file cannot be parsed
 +-- CorruptSidecarError    a file of finished records cannot be parsed
 +-- CorruptSegmentError    a segment stops being a chain of records
"""


class DiskQueueError(Exception):
    """The root of this package's own errors; never raised itself."""


class RecordTooLargeError(DiskQueueError):
    """Raised by `append` and `put` for a record outside the limits, before a byte is written.

    The text is go-diskqueue's, and it serves for records that are too small as well.
    """

    def __init__(self, size_bytes: int, min_record_bytes: int, max_record_bytes: int) -> None:
        super().__init__(
            f"invalid message write size ({size_bytes})"
            f" minMsgSize={min_record_bytes} maxMsgSize={max_record_bytes}"
        )
        self.size_bytes = size_bytes


class QueueClosedError(DiskQueueError):
    """Raised by every operation on a queue that was closed or deleted; nsqd's text is `exiting`."""

    def __init__(self) -> None:
        super().__init__("exiting")


class TailUnknownError(DiskQueueError):
    """Raised by `peek` for the newest records if no checksum tells where they begin.

    go-diskqueue has written them, or checksums are off: to find them all would have to be read.
    """


class CorruptMetadataError(DiskQueueError):
    """Raised when a metadata file is not `DEPTH\\nFILE,POS\\nFILE,POS\\n`.

    `DiskQueue` answers it by scanning the segments, so only readers of single files see it.
    """


class CorruptSidecarError(DiskQueueError):
    """Raised when a file of finished records is damaged, cut off or of an unknown version.

    `DiskQueue` answers it by delivering these records again.
    """


class CorruptSegmentError(DiskQueueError):
    """Raised by `segment.iter_records` at the first byte that cannot start a record.

    `DiskQueue` never raises it: there the rest of the segment is quarantined.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        reason: str,
        *,
        is_torn: bool,
        resume: int | None = None,
        record_count: int = 0,
    ) -> None:
        """Args:
        resume: where records go on, if checksums tell.
        record_count: how many records are lost up to there.
        """
        super().__init__(f"{path} at offset {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        # The file ends inside the record, as after a write that was cut short.
        self.is_torn = is_torn
        self.resume = resume
        self.record_count = record_count
