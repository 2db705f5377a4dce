"""FakeScheduler: a Scheduler whose time stands still until a test moves it."""

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

Work = Callable[[], None]
Done = Callable[[OSError | None], None]

MAX_TURNS = 10_000


class FakeTimer:
    """A call that waits for its time."""

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self._callback: Callable[[], object] | None = callback

    @property
    def is_pending(self) -> bool:
        """Whether it has neither been called nor taken back."""
        return self._callback is not None

    def cancel(self) -> None:
        """Never make the call."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, unless it was taken back."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class FakeScheduler:
    """Turns, timers and threads that move only when a test says so.

    Work for a thread is done at once by default; with `holds_threads` set it waits in `held_work`
    until `finish_thread`, so that a test can look in between.
    """

    def __init__(self, *, wall_time_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now = 1000.0
        self.wall_ns = wall_time_ns
        self._offset_ns = wall_time_ns - round(self.now * 1e9)
        self.holds_threads = False
        self.has_tiny_slices = False  # each slice ends at its first look at the clock
        self.held_work: deque[tuple[Work, Done]] = deque()
        self._soon: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = count()

    def time(self) -> float:
        """Return the time of the clock that never steps."""
        return self.now

    def wall_time_ns(self) -> int:
        """Return the wall clock, as the test has set it."""
        return self.wall_ns

    def steady_time_ns(self) -> int:
        """Return the wall clock as if no test had set it."""
        return round(self.now * 1e9) + self._offset_ns

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call in the next turn."""
        self._soon.append(callback)
        return None

    def share(self, step: Callable[[], bool]) -> object:
        """Call a step once in each turn until it has no more to do."""
        return self.call_soon(partial(self._run_step, step))

    def _run_step(self, step: Callable[[], bool]) -> None:
        if step():
            self.share(step)

    def slice_end(self) -> float:
        """Return a time in the past if slices shall be as small as possible, else one far away."""
        return 0.0 if self.has_tiny_slices else float("inf")

    def call_at(self, when: float, callback: Callable[[], object]) -> FakeTimer:
        """Call at `when`."""
        timer = FakeTimer(when, callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def run_in_thread(self, work: Work, done: Done) -> None:
        """Do the work at once and report in the next turn, or hold it back."""
        self.held_work.append((work, done))
        if not self.holds_threads:
            self.finish_thread()

    def finish_thread(self, error: OSError | None = None) -> None:
        """Do the oldest work that is held back, or let it fail; it is reported in the next turn."""
        work, done = self.held_work.popleft()
        if error is None:
            try:
                work()
            except OSError as raised:
                error = raised
        self.call_soon(lambda: done(error))

    @property
    def pending_timers(self) -> list[FakeTimer]:
        """The timers that will still fire, earliest first."""
        return [timer for _, _, timer in sorted(self._timers) if timer.is_pending]

    @property
    def is_idle(self) -> bool:
        """Whether no call waits for the next turn."""
        return not self._soon

    def turn(self) -> None:
        """Make the calls that wait for this turn; what they schedule waits for the next."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def settle(self) -> None:
        """Turn until nothing more happens at this moment."""
        for _ in range(MAX_TURNS):
            if not self._soon:
                return
            self.turn()
        raise AssertionError("the loop never becomes idle")

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer; the wall clock goes along."""
        self.settle()
        end = self.now + seconds
        for _ in range(MAX_TURNS):
            while self._timers and not self._timers[0][2].is_pending:
                heapq.heappop(self._timers)
            if not self._timers or self._timers[0][0] > end:
                break
            when, _, timer = heapq.heappop(self._timers)
            self._move_to(max(self.now, when))
            timer.fire()
            self.settle()
        else:
            raise AssertionError("the timers never stop")
        self._move_to(end)

    def _move_to(self, now: float) -> None:
        self.wall_ns += round((now - self.now) * 1e9)
        self.now = now
