"""Front: when the first unread message of a disk queue was published, for statistics."""

from typing import Protocol

from diskqueue import DiskQueue
from diskqueue.envelope import HEADER_BYTES, Envelope, decode
from nsqd.broker.queue.due_log import DueLog


class Front(Protocol):
    """The first unread record of a backend."""

    def find_timestamp(self, now_ns: int) -> int | None:
        """Return when its message was published; None if there is none, or it is not due."""


class DiskFront:
    """Looks at the first unread record once, and again only after `forget`."""

    __slots__ = ("_due_log", "_message", "_queue")

    def __init__(self, queue: DiskQueue, due_log: DueLog) -> None:
        self._queue = queue
        self._due_log = due_log
        self._message: Envelope | None = None

    def forget(self) -> None:
        """Look again when asked: the record is about to be read or removed."""
        self._message = None

    def find_timestamp(self, now_ns: int) -> int | None:
        """Return when its message was published; None if there is none, or it is not due."""
        if not self._queue.depth:
            return None
        if self._message is None:
            try:
                records = self._queue.peek(1, HEADER_BYTES)
            except OSError:  # the next read meets the same error, and reports it
                return None
            if not records:
                return None
            timestamp_ns, attempts, message_id, _ = decode(records[0])
            self._message = Envelope(timestamp_ns, attempts, message_id, b"")  # not its body
        due_ns = self._due_log.unread.get(self._message.message_id, 0)
        return None if due_ns > now_ns else self._message.timestamp_ns


class _NoFront:
    """The front of a backend that keeps no records."""

    def find_timestamp(self, now_ns: int) -> int | None:
        """Return None."""


NO_FRONT = _NoFront()
