"""HostPool: which of several hosts is next, by the results of earlier requests. Pure.

round-robin     each in turn, whatever happens
hostpool        in turn; one that failed is left out for 30 s, doubling up to 15 min. If all have
                failed, all are tried again.
epsilon-greedy  as hostpool for a share of the requests, 0.3 falling to 0.01, to learn how fast each
                is; the others prefer the fast, by their times of the last five minutes
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Mode: TypeAlias = Literal["hostpool", "round-robin", "epsilon-greedy"]
MODES: Final = ("hostpool", "round-robin", "epsilon-greedy")

_FIRST_PAUSE_S: Final = 30.0
_MAX_PAUSE_S: Final = 900.0
_FIRST_EPSILON: Final = 0.3
_LEAST_EPSILON: Final = 0.01
_EPSILON_DECAY: Final = 0.9
_MEMORY_S: Final = 300.0
_MIN_SECONDS: Final = 1e-6


@dataclass(slots=True)
class _Host:
    name: str
    pause_s: float = 0.0  # 0 while it is well
    retry_at: float = 0.0
    # Times of its replies, those of long ago counting less.
    seconds: float = 0.0
    weight: float = 0.0
    noted_at: float = 0.0

    def forget(self, now: float) -> None:
        share = math.exp(-(now - self.noted_at) / _MEMORY_S)
        self.seconds *= share
        self.weight *= share
        self.noted_at = now


class HostPool:
    """Hosts in turn. `take` one, then `note` its result."""

    def __init__(
        self,
        names: Sequence[str],
        mode: Mode = "hostpool",
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        """Args: chance: for epsilon-greedy."""
        self._hosts = {name: _Host(name) for name in names}
        self._mode = mode
        self._clock = clock
        self._chance = chance or random.Random()
        self._turn = 0
        self._epsilon = _FIRST_EPSILON

    def __len__(self) -> int:
        """Return how many hosts there are."""
        return len(self._hosts)

    def take(self, besides: Container[str] = ()) -> str:
        """Return the next host, another one than those that a request has tried already."""
        hosts = [host for host in self._hosts.values() if host.name not in besides]
        if self._mode == "epsilon-greedy":
            if self._chance.random() >= self._epsilon:
                fast = self._take_fast(hosts)
                if fast is not None:
                    return fast
            self._epsilon = max(self._epsilon * _EPSILON_DECAY, _LEAST_EPSILON)
        return self._take_turn(hosts)

    def note(self, name: str, *, is_ok: bool, seconds: float = 0.0) -> None:
        """Note the result of a request to a host."""
        host = self._hosts[name]
        if self._mode == "round-robin":
            return
        now = self._clock()
        if is_ok:
            host.pause_s = 0.0
            host.forget(now)
            host.seconds += seconds
            host.weight += 1
        elif not host.pause_s:
            host.pause_s = _FIRST_PAUSE_S
            host.retry_at = now + host.pause_s

    def _take_turn(self, hosts: list[_Host]) -> str:
        now = self._clock()
        for _ in hosts:
            host = hosts[self._turn % len(hosts)]
            self._turn += 1
            if not host.pause_s:
                return host.name
            if host.retry_at <= now:
                # Tried once; if it fails again, the pause is longer.
                host.pause_s = min(host.pause_s * 2, _MAX_PAUSE_S)
                host.retry_at = now + host.pause_s
                return host.name
        for host in hosts:
            host.pause_s = 0.0
        host = hosts[self._turn % len(hosts)]
        self._turn += 1
        return host.name

    def _take_fast(self, hosts: list[_Host]) -> str | None:
        """Choose by speed among the hosts whose times are known; None if there is none."""
        now = self._clock()
        names, scores = [], []
        for host in hosts:
            host.forget(now)
            if not host.pause_s and host.weight > _MIN_SECONDS:
                names.append(host.name)
                scores.append(1 / max(host.seconds / host.weight, _MIN_SECONDS))
        return self._chance.choices(names, scores)[0] if names else None
