"""Replies: the answers to a client, in the order of its commands.

Most are sent when the commands of a read have been run. A publish that has to be durable is
answered when its sync has ended; until then all later replies wait behind it. Messages and
heartbeats do not wait: they answer no command.

A client that leaves too many replies unread, or has too many that wait for the disk, is not read
from.
"""

from collections import deque
from collections.abc import Callable

from nsqd.broker.queue.receipt import Receipt
from nsqd.tcp.read_gate import PauseReason, ReadGate

# A client with this many replies that wait for the disk is not read from until some are sent.
MAX_WAITING_REPLIES = 1024
MAX_WAITING_BYTES = 1024 * 1024


class Replies:
    """The replies that are not sent yet."""

    __slots__ = (
        "_fresh",
        "_gate",
        "_on_settled",
        "_waiting_bytes",
        "_write",
        "add",
        "stalled_at",
        "waiting",
    )

    def __init__(
        self, write: Callable[[bytes], object], gate: ReadGate, on_settled: Callable[[], object]
    ) -> None:
        """Begin without replies.

        Args:
            write: sends bytes to the client.
            gate: paused while the client is owed too many replies.
            on_settled: called when a publish is durable, or has failed; calls `send_settled`.
        """
        self._write = write
        self._gate = gate
        # Since when the client does not read: the transport's buffer is too full. Set by the
        # connection.
        self.stalled_at: float | None = None
        self._on_settled: Callable[[], object] | None = on_settled
        self._fresh: list[bytes] = []  # of the commands that are being run
        # Appends one frame, or several joined, to the fresh replies. The list's own method: every
        # command calls it.
        self.add = self._fresh.append
        # Replies behind the oldest publish that is not durable yet: the receipt and verb if the
        # reply is a publish's, and the frames. Changed here only.
        self.waiting: deque[tuple[Receipt | None, str, bytes]] = deque()
        self._waiting_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more commands should be run before some replies are sent."""
        is_long = len(self.waiting) >= MAX_WAITING_REPLIES
        return is_long or self._waiting_bytes >= MAX_WAITING_BYTES

    def flush(self) -> None:
        """Send the fresh replies in one write."""
        fresh = self._fresh
        if fresh:
            data = fresh[0] if len(fresh) == 1 else b"".join(fresh)
            fresh.clear()
            if self.waiting:
                self._append(None, "", data)
            else:
                self._write(data)
        elif not self.waiting:
            return
        if self.stalled_at is not None:
            self._gate.pause(PauseReason.UNREAD)
        if self.waiting and self.is_full:
            self._gate.pause(PauseReason.DISK)

    def add_durable(self, receipt: Receipt, verb: str, reply: bytes) -> None:
        """Append a reply that is sent once its publish is durable."""
        self.flush()
        self._append(receipt, verb, reply)
        receipt.when_done(self._note_settled)

    def send_settled(self) -> tuple[str, OSError] | None:
        """Send the waiting replies as far as their publishes are durable.

        Returns:
            The verb and the error of the next publish if it has failed. The replies behind it are
            dropped: its error is the client's last reply.
        """
        settled: list[bytes] = []
        failure = None
        waiting = self.waiting
        while waiting:
            receipt, verb, reply = waiting[0]
            if receipt is not None:
                if not receipt.is_done:
                    break
                if receipt.error is not None:
                    failure = (verb, receipt.error)
                    self._clear()
                    break
            waiting.popleft()
            self._waiting_bytes -= len(reply)
            settled.append(reply)
        if settled:
            self._write(b"".join(settled))
            if self.stalled_at is not None:
                self._gate.pause(PauseReason.UNREAD)
        return failure

    def close(self) -> None:
        """Drop all replies: the connection is gone."""
        self._fresh.clear()
        self._clear()
        self._on_settled = None

    def _append(self, receipt: Receipt | None, verb: str, reply: bytes) -> None:
        self.waiting.append((receipt, verb, reply))
        self._waiting_bytes += len(reply)

    def _clear(self) -> None:
        self.waiting.clear()
        self._waiting_bytes = 0

    def _note_settled(self, _error: OSError | None) -> None:
        if self._on_settled is not None:
            self._on_settled()
