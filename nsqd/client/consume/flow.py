"""Flow: how much each connection may send, from max_in_flight, backoff and late answers.

RDYs add up to max_in_flight. They are 0 while the consumer backs off, 1 on one connection while it
probes, half after answers that came too late. Lower RDYs are sent before higher ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from nsqd.client.consume.backoff import Backoff, BackoffPolicy, Phase
from nsqd.client.consume.rdy import Rotation, share

# A probe is tried on the next connection if nothing comes.
_PROBE_S: Final = 10.0


class Valve(Protocol):
    """A connection, as far as its RDY is concerned."""

    rdy: int
    max_rdy_count: int

    def __hash__(self) -> int:
        """By identity."""

    def set_rdy(self, count: int) -> None:
        """Send RDY."""


class Flow:
    """The RDYs of all connections of a consumer."""

    def __init__(
        self,
        max_in_flight: int,
        policy: BackoffPolicy | None,
        *,
        on_backoff: Callable[[int, float], None],
        on_limit: Callable[[int], None],
    ) -> None:
        """Args: on_backoff: gets level and pause. on_limit: gets the bound of messages held."""
        self.max_in_flight = max_in_flight
        self._backoff = Backoff(policy) if policy is not None else None
        self._on_backoff = on_backoff
        self._on_limit = on_limit
        self._valves: list[Valve] = []
        self._rotation: Rotation[Valve] = Rotation()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._probe: Valve | None = None
        self._probed_at = 0.0
        # Successes that are missing until a consumer that was too late is trusted again.
        self._owed_count = 0
        self._is_stopped = False
        # Whether a success changes something: looked at for each message.
        self.is_careful = False
        on_limit(max_in_flight)

    @property
    def level(self) -> int:
        """The level of backoff; 0 is none."""
        return self._backoff.level if self._backoff is not None else 0

    @property
    def rdy_total(self) -> int:
        """The sum of all RDYs."""
        return sum(valve.rdy for valve in self._valves)

    def add(self, valve: Valve) -> None:
        """Give a new connection its share."""
        self._valves.append(valve)
        self.apply()

    def remove(self, valve: Valve) -> bool:
        """Give the share of a lost connection to the others; return whether it had one."""
        if valve not in self._valves:
            return False
        self._valves.remove(valve)
        if valve is self._probe:
            self._probe = None
        self.apply()
        return True

    def set_max_in_flight(self, count: int) -> None:
        """Change the bound; 0 pauses."""
        self.max_in_flight = count
        self._owed_count = 0
        self._on_limit(count)
        self.apply()

    def stop(self) -> None:
        """Send no more RDY."""
        self._is_stopped = True
        if self._pause is not None:
            self._pause.cancel()

    def note_message(self, valve: Valve) -> None:
        """Note that messages came."""
        if len(self._valves) > self.max_in_flight:
            self._rotation.note_activity(valve, self._loop.time())
        if valve is self._probe:
            self._probed_at = self._loop.time()

    def note_success(self) -> None:
        """Note that a message was finished."""
        if self._owed_count:
            self._owed_count -= 1
            if not self._owed_count:
                self.apply()
        backoff = self._backoff
        if backoff is not None and backoff.level and backoff.succeed():
            self._follow_backoff(backoff)

    def note_failure(self) -> None:
        """Note that a handler failed."""
        backoff = self._backoff
        if backoff is not None and backoff.fail():
            self._follow_backoff(backoff)

    def note_late(self) -> None:
        """Note an answer that came too late: fewer messages at a time get more time each."""
        was_trusted = not self._owed_count
        self._owed_count = max(self.max_in_flight, 1)
        if was_trusted:
            self.apply()

    def apply(self) -> None:
        """Send the RDYs that have changed, lower ones first; take turns if there are too few."""
        self.is_careful = bool(self._owed_count or self.level)
        if self._is_stopped:
            return
        wanted = self._wanted()
        changes = [(count - valve.rdy, valve, count) for valve, count in wanted.items()]
        for change, valve, count in sorted(changes, key=lambda each: each[0]):
            if change:
                valve.set_rdy(count)

    def _wanted(self) -> dict[Valve, int]:
        valves = self._valves
        total = self.max_in_flight
        if self._owed_count and total > 1:
            total //= 2
        phase = self._backoff.phase if self._backoff is not None else Phase.NORMAL
        if phase is not Phase.NORMAL:
            wanted = dict.fromkeys(valves, 0)
            if phase is Phase.PROBING and valves and total:
                wanted[self._choose_probe()] = 1
            return wanted
        if total >= len(valves):
            self._rotation.clear()
            shares = share(total, [valve.max_rdy_count for valve in valves])
            return dict(zip(valves, shares, strict=True))
        holders = self._rotation.update(valves, total, self._loop.time())
        return {valve: int(valve in holders) for valve in valves}

    def _choose_probe(self) -> Valve:
        """Keep to the connection that probes, or go on to the next if nothing came there."""
        now = self._loop.time()
        valves = self._valves
        if self._probe is None:
            self._probe = valves[0]
            self._probed_at = now
        elif now - self._probed_at >= _PROBE_S:
            position = valves.index(self._probe)
            self._probe = valves[(position + 1) % len(valves)]
            self._probed_at = now
        return self._probe

    def _follow_backoff(self, backoff: Backoff) -> None:
        self._on_backoff(backoff.level, backoff.pause_s)
        self._probe = None
        if backoff.phase is Phase.PAUSED:
            self._pause = self._loop.call_later(backoff.pause_s, self._end_pause, backoff)
        self.apply()

    def _end_pause(self, backoff: Backoff) -> None:
        backoff.end_pause()
        self.apply()
