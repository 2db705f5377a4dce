"""AgeClock: the time by which messages are judged too old, on which no step of the clock tells."""

from nsqd.broker.scheduler import Scheduler

# A difference to the clock that never steps which is drift, not a step.
DRIFT_S = 1.0


class AgeClock:
    """Wall-clock time that never runs ahead of the time that has really passed.

    Messages carry the wall clock of their publish. If that clock steps forward, everything would be
    old at once: so the steady clock is believed too, whichever is behind, until the step is as long
    ago as a message may be old. What was published before it is too old by then in truth, and what
    was published after it has the new time.
    """

    __slots__ = ("_offset_ns", "_scheduler", "_stepped_at", "_ttl_s")

    def __init__(self, scheduler: Scheduler, ttl_s: float) -> None:
        """Args: ttl_s: how old messages may become."""
        self._scheduler = scheduler
        self._ttl_s = ttl_s
        self._stepped_at: float | None = None
        # From the clock that never steps to the wall clock.
        self._offset_ns = scheduler.wall_time_ns() - round(scheduler.time() * 1e9)

    def now_ns(self) -> int:
        """Return the time in nanoseconds since 1970."""
        now = self._scheduler.time()
        wall_ns = self._scheduler.wall_time_ns()
        steady_ns = round(now * 1e9) + self._offset_ns
        if abs(wall_ns - steady_ns) <= DRIFT_S * 1e9:
            self._stepped_at = None
        elif self._stepped_at is None:
            self._stepped_at = now
            return min(wall_ns, steady_ns)
        elif now - self._stepped_at < self._ttl_s:
            return min(wall_ns, steady_ns)
        else:
            self._stepped_at = None
        self._offset_ns += wall_ns - steady_ns
        return wall_ns
