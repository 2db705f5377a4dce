"""Backoff: slow down when handlers fail, as go-nsq does. Pure: the caller keeps the time.

A failure raises the level k to k + 1, and nothing is received for min(2^(k+1) s, 2 min). Then one
message is let in as a probe: its success lowers the level, its failure raises it. At level 0 all is
as before. Outcomes during the pause are of messages that were in flight already: they do not count.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

_MAX_LEVEL: Final = 30


class Phase(enum.Enum):
    """NORMAL receives, PAUSED nothing, PROBING one message at a time."""

    NORMAL = enum.auto()
    PAUSED = enum.auto()
    PROBING = enum.auto()


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """How long the pauses are. Times are seconds.

    Attributes:
        jitter: "full" takes a random share of each pause, so that consumers do not probe together.
    """

    unit: float = 1.0
    max_pause: float = 120.0
    jitter: Literal["full"] | None = None


class Backoff:
    """The level and the phase. `pause_s` is how long PAUSED lasts, from the call that began it."""

    def __init__(
        self, policy: BackoffPolicy, random_share: Callable[[], float] = random.random
    ) -> None:
        """Args: random_share: returns a number from 0 to 1."""
        self.level = 0
        self.phase = Phase.NORMAL
        self.pause_s = 0.0
        self._policy = policy
        self._random = random_share

    def fail(self) -> bool:
        """Note a failure; return whether a pause begins now."""
        if self.phase is Phase.PAUSED:
            return False
        # At the longest pause a higher level would only take longer to come down from.
        if self._longest_s(self.level) < self._policy.max_pause and self.level < _MAX_LEVEL:
            self.level += 1
        self._pause()
        return True

    def succeed(self) -> bool:
        """Note a success; return whether the phase has changed."""
        if self.phase is not Phase.PROBING:
            return False
        self.level -= 1
        if self.level:
            self._pause()
        else:
            self.phase = Phase.NORMAL
            self.pause_s = 0.0
        return True

    def end_pause(self) -> None:
        """Begin to probe."""
        assert self.phase is Phase.PAUSED
        self.phase = Phase.PROBING

    def _pause(self) -> None:
        self.phase = Phase.PAUSED
        longest_s = min(self._longest_s(self.level), self._policy.max_pause)
        self.pause_s = longest_s * (self._random() if self._policy.jitter else 1.0)

    def _longest_s(self, level: int) -> float:
        return self._policy.unit * (1 << level)
