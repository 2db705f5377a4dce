"""ReadGate: a client is read from, unless there is a reason not to.

Several reasons can hold at a time, and each is lifted by the object that gave it. The gate alone
pauses and resumes the transport: it pauses with the first reason and resumes with the last.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto


class PauseReason(Enum):
    """Why a client is not read from."""

    AUTH = auto()  # a command waits for the auth server's answer
    ORDER = auto()  # an IDENTIFY waits until the replies before it are sent
    DISK = auto()  # too many replies wait for the disk
    UNREAD = auto()  # the client does not read its replies
    TURN = auto()  # bytes that were read before are left for the next turn of the event loop


# The client can't help these: while one of them holds, its silence does not count against it.
_OURS = frozenset({PauseReason.AUTH, PauseReason.ORDER, PauseReason.DISK})
_ONLY_TURN = frozenset({PauseReason.TURN})


class ReadGate:
    """Keeps the reasons why one client is not read from."""

    __slots__ = ("_loop", "_on_turn", "_transport", "_turn", "reasons")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        on_turn: Callable[[], object],
    ) -> None:
        """Start without a reason.

        Args:
            on_turn: goes on with the bytes that `TURN` is about. It is called in a later turn of
                the loop, when no other reason holds, and calls `set_turn`.
        """
        self.reasons: set[PauseReason] = set()  # changed here only
        self._transport: asyncio.Transport | None = transport
        self._loop = loop
        self._on_turn: Callable[[], object] | None = on_turn
        self._turn: asyncio.Handle | None = None

    @property
    def is_client_heard(self) -> bool:
        """Whether the client could be heard if it said anything."""
        return self.reasons.isdisjoint(_OURS)

    def pause(self, reason: PauseReason) -> None:
        """Add a reason; no effect if it holds already."""
        if self._transport is None:
            return
        if not self.reasons:
            self._transport.pause_reading()
        self.reasons.add(reason)
        self._plan_turn()

    def lift(self, reason: PauseReason) -> bool:
        """Remove a reason and return whether it held; read on if it was the last."""
        if reason not in self.reasons:
            return False
        self.reasons.remove(reason)
        if not self.reasons and self._transport is not None:
            self._transport.resume_reading()
        else:
            self._plan_turn()
        return True

    def set_turn(self, *, is_needed: bool) -> None:
        """Pause for the next turn of the loop if bytes are left for it."""
        if is_needed:
            self.pause(PauseReason.TURN)
        elif self.reasons:
            self.lift(PauseReason.TURN)

    def close(self) -> None:
        """Leave the transport as it is from here on: the connection ends."""
        self.reasons.clear()
        self._transport = None
        self._on_turn = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _plan_turn(self) -> None:
        if self._turn is None and self.reasons == _ONLY_TURN:
            self._turn = self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        if self._on_turn is not None and self.reasons == _ONLY_TURN:
            self._on_turn()
