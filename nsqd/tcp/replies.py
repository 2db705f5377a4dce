"""HeldReplies: what a client is answered in the order of its commands, though some answers wait.

A publish that has to be durable is answered when its sync has ended. Until then everything that the
client is answered after it waits here too. Messages and heartbeats do not: they answer nothing.
"""

from collections import deque
from collections.abc import Callable

from nsqd.broker.queue.receipt import Receipt

# A client that has this many commands unanswered is not listened to until some are.
MAX_HELD_REPLIES = 1024
MAX_HELD_BYTES = 1024 * 1024


class HeldReplies:
    """Replies behind the oldest one that waits; empty most of the time."""

    def __init__(self, on_settled: Callable[[], object]) -> None:
        """Args: on_settled: told when some may be ready to be sent: it calls `take`."""
        self._on_settled = on_settled
        # For a look that costs nothing; only we change them.
        self.replies: deque[tuple[Receipt | None, str, bytes]] = deque()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self.replies)

    @property
    def is_full(self) -> bool:
        """Whether no more commands should be run before some replies have left."""
        return len(self.replies) >= MAX_HELD_REPLIES or self._size_bytes >= MAX_HELD_BYTES

    def add(self, reply: bytes) -> None:
        """Send a reply after those that are here."""
        self.replies.append((None, "", reply))
        self._size_bytes += len(reply)

    def add_receipt(self, receipt: Receipt, verb: str, reply: bytes) -> None:
        """Send a reply after those that are here, when the receipt is done."""
        self.replies.append((receipt, verb, reply))
        self._size_bytes += len(reply)
        receipt.when_done(self._settled)

    def take(self) -> tuple[list[bytes], tuple[str, OSError] | None]:
        """Return what can be sent now, and the verb and error of the publish that failed next."""
        ready: list[bytes] = []
        replies = self.replies
        while replies:
            receipt, verb, reply = replies[0]
            if receipt is not None:
                if not receipt.is_done:
                    break
                if receipt.error is not None:
                    self._clear()
                    return ready, (verb, receipt.error)
            replies.popleft()
            self._size_bytes -= len(reply)
            ready.append(reply)
        return ready, None

    def close(self) -> None:
        """Forget everything: the connection is gone."""
        self._clear()
        self._on_settled = _ignore

    def _clear(self) -> None:
        self.replies.clear()
        self._size_bytes = 0

    def _settled(self, _error: OSError | None) -> None:
        self._on_settled()


def _ignore() -> None:
    """Nobody is there to be answered."""
