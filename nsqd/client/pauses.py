"""Pauses: how long to wait before the next attempt to connect."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_FIRST_S: Final = 0.1
_MAX_S: Final = 30.0
# A connection that lived so long was a good one.
_LIFE_S: Final = 10.0
_MAX_DOUBLINGS: Final = 16


class Pauses:
    """Doubling pauses with full jitter between the failures of one connection."""

    __slots__ = ("_failure_count", "_max_s", "_random")

    def __init__(
        self, *, max_s: float = _MAX_S, random_share: Callable[[], float] = random.random
    ) -> None:
        """Args: random_share: returns a number from 0 to 1."""
        self._failure_count = 0
        self._max_s = max_s
        self._random = random_share

    def next_s(self, lived_s: float = 0.0) -> float:
        """Return the pause after a connection that lived so long; 0 if it did not come about."""
        if lived_s >= _LIFE_S:
            self._failure_count = 0
        bound_s = min(_FIRST_S * (1 << min(self._failure_count, _MAX_DOUBLINGS)), self._max_s)
        self._failure_count += 1
        return bound_s * self._random()

    def reset(self) -> None:
        """Begin anew: a command succeeded."""
        self._failure_count = 0
