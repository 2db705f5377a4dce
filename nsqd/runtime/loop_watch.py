"""LoopWatch: how late the event loop is, and the call that held it up.

The loop beats: every 25 ms a timer compares the time with the time at which it was due. The
difference is the *lag*, which is how long a client waits for its turn. When a beat is late, a
thread that looks at the beats notes the stack of the loop's thread, and the beat that comes at last
reports a *stall*. Beats and looks cost nothing per message; to wake an idle process for them took
0.5 to 0.7 % of a core, and on a busy loop they could not be measured.

Every daemon has one for as long as it serves; `/debug/setblockrate` makes another one.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from traceback import walk_stack

logger = logging.getLogger(__name__)

BEAT_S = 0.025
# Every turn of the loop that takes 50 ms delays a beat by at least this much.
STALL_LAG_S = 0.025
# A beat that is late by less is not worth a look: timers are exact to a millisecond.
OVERDUE_S = 0.001
LOG_INTERVAL_S = 60.0
LOGGED_CALLS = 12
MAX_STACK_DEPTH = 128

WORST_SLOTS = 6
WORST_SLOT_S = 10.0

# The bounds of a histogram of lags, in seconds.
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Call = tuple[str, int, str]  # file, line, function


@dataclass(frozen=True, slots=True)
class Stall:
    """The loop was held up."""

    lag_s: float
    cpu_s: float  # the CPU time of the loop's thread since the beat before
    stack: tuple[Call, ...]  # the innermost call first; empty if the thread did not see it


def ignore(_value: object) -> None:
    """Do nothing with a lag or a stall."""


class LoopWatch:
    """Measure the lag of the loop of this thread, from now on until `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        name: str = "loop-watch",
        stall_lag_s: float = STALL_LAG_S,
        on_lag: Callable[[float], object] = ignore,
        on_stall: Callable[[Stall], object] = ignore,
    ) -> None:
        """Args:
        name: of the thread that looks at the loop.
        on_lag: called with the lag of each beat, in seconds.
        on_stall: called when a beat was late by `stall_lag_s` or more.
        """
        self._call_later = loop.call_later
        self._stall_lag_s = stall_lag_s
        self._on_lag = on_lag
        self._on_stall = on_stall
        self._beat_s = min(BEAT_S, stall_lag_s)
        self._worst = WorstLag()
        self._thread_id = threading.get_ident()
        self._cpu_s = time.thread_time()
        # The stack that was seen while the next beat was late.
        self._seen: tuple[Call, ...] = ()
        self._due_at = time.monotonic() + self._beat_s
        self._timer = self._call_later(self._beat_s, self._beat)
        self._observer = Observer(name, stall_lag_s, self._look)

    @property
    def worst_lag_s(self) -> float:
        """The greatest lag of the last minute."""
        return self._worst.read(time.monotonic())

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        self._observer.close()

    def _beat(self) -> None:
        now = time.monotonic()
        lag_s = max(now - self._due_at, 0.0)
        cpu_s = time.thread_time()
        self._worst.note(lag_s, now)
        self._on_lag(lag_s)
        if lag_s >= self._stall_lag_s:
            self._on_stall(Stall(lag_s, cpu_s - self._cpu_s, self._seen))
        self._seen = ()
        self._cpu_s = cpu_s
        self._due_at = time.monotonic() + self._beat_s
        self._timer = self._call_later(self._beat_s, self._beat)

    def _look(self) -> None:
        """Note the stack of the loop's thread, in the thread of the observer."""
        due_at = self._due_at
        if time.monotonic() - due_at < OVERDUE_S:
            return
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - there is no other way
        stack = [
            (frame.f_code.co_filename, line, frame.f_code.co_qualname)
            for (frame, line), _ in zip(walk_stack(frame), range(MAX_STACK_DEPTH), strict=False)
        ]
        if due_at == self._due_at:  # the beat has not come in the meantime
            self._seen = tuple(stack)


class WorstLag:
    """The greatest lag of the last minute, in slots of ten seconds."""

    def __init__(self) -> None:
        self._slots = [0.0] * WORST_SLOTS
        self._number = 0

    def note(self, lag_s: float, now: float) -> None:
        """Count a lag."""
        self._move(now)
        slot = self._number % WORST_SLOTS
        if lag_s > self._slots[slot]:
            self._slots[slot] = lag_s

    def read(self, now: float) -> float:
        """Return the greatest lag, in seconds."""
        self._move(now)
        return max(self._slots)

    def _move(self, now: float) -> None:
        number = int(now // WORST_SLOT_S)
        for passed in range(max(self._number + 1, number + 1 - WORST_SLOTS), number + 1):
            self._slots[passed % WORST_SLOTS] = 0.0
        self._number = number


class StallLog:
    """Log stalls, one line a minute: the first at once, then the worst of each minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_later = loop.call_later
        self._timer: asyncio.TimerHandle | None = None
        self._worst: Stall | None = None
        self._count = 0

    def note(self, stall: Stall) -> None:
        """Log a stall, or remember it for the line of this minute."""
        self._count += 1
        if self._worst is None or stall.lag_s > self._worst.lag_s:
            self._worst = stall
        if self._timer is None:
            self._write()

    def close(self) -> None:
        """Log nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        self._timer = None
        worst, self._worst = self._worst, None
        if worst is None:
            return
        count, self._count = self._count, 0
        logger.warning(
            "LOOP: held up lag=%.0fms cpu=%.0fms count=%d in %s",
            *(worst.lag_s * 1e3, worst.cpu_s * 1e3, count),
            describe_calls(worst.stack),
        )
        self._timer = self._call_later(LOG_INTERVAL_S, self._write)


@contextmanager
def logging_stalls(
    loop: asyncio.AbstractEventLoop, *, on_lag: Callable[[float], object] = ignore
) -> Iterator[LoopWatch]:
    """Watch the loop and log its stalls, for as long as the daemon serves."""
    log = StallLog(loop)
    watch = LoopWatch(loop, on_lag=on_lag, on_stall=log.note)
    try:
        yield watch
    finally:
        watch.close()
        log.close()


def describe_calls(stack: tuple[Call, ...]) -> str:
    """Return the innermost calls in one line, as `broker.py:12 Broker.load < daemon.py:3 run`."""
    calls = [f"{PurePath(file).name}:{line} {name}" for file, line, name in stack[:LOGGED_CALLS]]
    return " < ".join(calls) or "an unknown call"


class Observer:
    """A thread that calls a function at an interval, until it is closed."""

    def __init__(self, name: str, interval_s: float, look: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._look = look
        # Held until the end: to wait for a lock costs half as much as to wait for an Event.
        self._life = threading.Lock()
        self._life.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._life.release()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._life.acquire(timeout=max(due - time.monotonic(), 0)):
            self._look()
            due = max(due + self._interval_s, time.monotonic())
