"""Deadlines: the one timer of a connection, and the signs of life that it is about.

A connection has one deadline at a time, and `Due` says which. Reads only note the time, so a busy
client never touches its timer: the heartbeat looks at the notes.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

# A deadline this near counts as reached: the second heartbeat and the deadline are one moment.
DEADLINE_SLACK_S = 0.05


class Due(Enum):
    """The task of a connection when its timer fires."""

    MAGIC = auto()  # the client has not sent the four bytes of its protocol: abort
    TLS = auto()  # the TLS handshake takes too long: refuse it
    HEARTBEAT = auto()  # send one, unless the client shows no sign of life
    LINGER = auto()  # the client has had its time to read the error: close
    CLOSE = auto()  # the client does not read the rest after the close: abort


class Vitality(Enum):
    """The condition of a client when a heartbeat is due."""

    ALIVE = auto()
    SILENT = auto()  # it sent no command for two heartbeat intervals
    DEAF = auto()  # it did not read for one heartbeat interval


class Deadlines:
    """The timer of one connection, and when its client was last heard."""

    __slots__ = ("_interval_s", "_loop", "_on_due", "_timer", "heard_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[Due], object]) -> None:
        """Count the client as heard now.

        Args:
            on_due: called when the timer fires, with the reason that it was set for.
        """
        self.heard_at = loop.time()  # set by the connection, too
        self._loop = loop
        self._on_due: Callable[[Due], object] | None = on_due
        self._interval_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: Due, delay_s: float) -> None:
        """Have this deadline instead of the one before."""
        self.clear()
        if self._on_due is not None:
            self._timer = self._loop.call_later(delay_s, self._on_due, due)

    def clear(self) -> None:
        """Have no deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start_heartbeats(self, interval_ms: int) -> None:
        """Count the client as heard now, and make heartbeats due; 0: none, and no deadline."""
        self.heard_at = self._loop.time()
        self._interval_s = interval_ms / 1000
        if interval_ms:
            self.await_heartbeat()
        else:
            self.clear()

    def await_heartbeat(self) -> None:
        """Make the next heartbeat due."""
        self.set(Due.HEARTBEAT, self._interval_s)

    def examine(self, *, is_client_heard: bool, stalled_at: float | None) -> Vitality:
        """Say how the client is when a heartbeat is due.

        Args:
            is_client_heard: it was listened to; otherwise its silence means nothing.
            stalled_at: since when it does not read, None if it does.
        """
        now = self._loop.time()
        if stalled_at is not None and now - stalled_at >= self._interval_s:
            return Vitality.DEAF
        limit_s = 2 * self._interval_s - DEADLINE_SLACK_S
        if is_client_heard and now - self.heard_at >= limit_s:
            return Vitality.SILENT
        return Vitality.ALIVE

    def close(self) -> None:
        """Have no deadline any more, and let go of the callback: it refers to the connection."""
        self.clear()
        self._on_due = None
