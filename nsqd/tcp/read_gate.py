"""ReadGate: a client is read from, unless there is a reason not to.

Several reasons can hold at a time, and each is lifted by the object that gave it. The gate alone
pauses and resumes the transport: it pauses with the first reason and resumes with the last.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from nsqd.runtime.turns import Turns


class PauseReason(Enum):
    """Why a client is not read from."""

    AUTH = auto()  # a command waits for the auth server's answer
    ORDER = auto()  # an IDENTIFY, or what follows a large publish, waits for the replies before it
    DISK = auto()  # too many replies wait for the disk
    UNREAD = auto()  # the client does not read its replies
    OUTPUT = auto()  # messages or replies wait to be compressed or encrypted
    TURN = auto()  # bytes that were read wait for a later turn of the event loop


# The client can't help these: while one of them holds, its silence does not count against it.
_OURS = frozenset(PauseReason) - {PauseReason.UNREAD}
_ONLY_TURN = frozenset({PauseReason.TURN})


class ReadGate:
    """Keeps the reasons why one client is not read from."""

    __slots__ = ("_is_in_line", "_on_turn", "_transport", "_turns", "reasons")

    def __init__(
        self, transport: asyncio.Transport, turns: Turns, on_turn: Callable[[], bool]
    ) -> None:
        """Start without a reason.

        Args:
            on_turn: goes on with the bytes that `TURN` is about, and says whether some are left. It
                is called in later turns of the loop, while no other reason holds.
        """
        self.reasons: set[PauseReason] = set()  # changed here only
        self._transport: asyncio.Transport | None = transport
        self._turns = turns
        self._on_turn: Callable[[], bool] | None = on_turn
        self._is_in_line = False  # for a turn

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
        self._wait_for_turn()

    def lift(self, reason: PauseReason) -> bool:
        """Remove a reason and return whether it held; read on if it was the last."""
        if reason not in self.reasons:
            return False
        self.reasons.remove(reason)
        if not self.reasons and self._transport is not None:
            self._transport.resume_reading()
        else:
            self._wait_for_turn()
        return True

    def close(self) -> None:
        """Leave the transport as it is from here on: the connection ends."""
        self.reasons.clear()
        self._transport = None
        self._on_turn = None

    def _wait_for_turn(self) -> None:
        if not self._is_in_line and self.reasons == _ONLY_TURN:
            self._is_in_line = True
            self._turns.share(self._take_turn)

    def _take_turn(self) -> bool:
        """Go on with the bytes that are left; return whether to call this again."""
        if self._on_turn is not None and self.reasons == _ONLY_TURN and not self._on_turn():
            self.lift(PauseReason.TURN)
        self._is_in_line = self.reasons == _ONLY_TURN
        return self._is_in_line
