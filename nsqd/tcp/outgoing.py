"""Outgoing: bytes that wait to be compressed or encrypted, a piece at a time.

To deflate a message of a megabyte takes 35 ms. So a large write is cut into pieces, and each turn
of the loop encodes as many as a slice has time for. Whatever is written meanwhile waits behind.
"""

import time
from collections import deque
from collections.abc import Callable

from nsqd.runtime.turns import Turns


class Outgoing:
    """The pieces of one stream that are not encoded yet, in their order."""

    __slots__ = ("_encode", "_is_held", "_is_in_line", "_on_change", "_pieces", "_turns", "is_busy")

    def __init__(
        self,
        turns: Turns,
        encode: Callable[[bytes], object],
        on_change: Callable[[], object],
    ) -> None:
        """Begin with none.

        Args:
            encode: encodes and sends a piece.
            on_change: called when `is_busy` has changed, but not by `close`.
        """
        self.is_busy = False  # pieces wait; set here only
        self._turns = turns
        self._encode = encode
        self._on_change = on_change
        self._pieces: deque[bytes] = deque()
        self._is_held = False
        self._is_in_line = False  # for a turn

    def add(self, data: bytes, piece_bytes: int) -> None:
        """Have bytes encoded in later turns, in pieces of this size."""
        for start in range(0, len(data), piece_bytes):
            self._pieces.append(data[start : start + piece_bytes])
        self._wait_for_turn()
        if not self.is_busy:
            self.is_busy = True
            self._on_change()

    def hold(self) -> None:
        """Encode nothing until `go_on`: the socket takes no more."""
        self._is_held = True

    def go_on(self) -> None:
        """Encode again."""
        self._is_held = False
        self._wait_for_turn()

    def close(self) -> None:
        """Drop the pieces, and the callbacks, which refer to the connection."""
        self._pieces.clear()
        self.is_busy = False
        self._encode = _drop
        self._on_change = _ignore

    def _wait_for_turn(self) -> None:
        if self._pieces and not self._is_in_line:
            self._is_in_line = True
            self._turns.share(self._take_turn)

    def _take_turn(self) -> bool:
        """Encode a slice of the pieces; return whether to call this again."""
        end = self._turns.slice_end()
        pieces = self._pieces
        while pieces and not self._is_held:
            self._encode(pieces.popleft())
            if time.perf_counter() >= end:
                break
        self._is_in_line = bool(pieces) and not self._is_held
        if not pieces and self.is_busy:
            self.is_busy = False
            self._on_change()
        return self._is_in_line


def _drop(data: bytes) -> None:
    """Encode nothing: the connection is over."""


def _ignore() -> None:
    """Tell no connection: it is over."""
