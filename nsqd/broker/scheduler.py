"""Scheduler: clock, timers, the next turn of the loop, and a thread for blocking calls.

The event loop is one Scheduler (nsqd.runtime.event_loop), the unit tests have another whose time
stands still until a test moves it.
"""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that has been scheduled and can be taken back."""

    def cancel(self) -> object:
        """Never make the call."""


class Scheduler(Protocol):
    """Time in seconds on a clock that never steps, and calls later on the same thread."""

    def time(self) -> float:
        """Return the current time of the clock that `call_at` refers to."""

    def wall_time_ns(self) -> int:
        """Return the wall clock, which may step, in nanoseconds since 1970."""

    def steady_time_ns(self) -> int:
        """Return the wall clock as it would be if it had not been set since the start."""

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call in the next turn of the loop."""

    def share(self, step: Callable[[], bool]) -> object:
        """Call `step` in later turns until it returns False, in round robin with other work.

        A step does a little: some hundred messages. It returns True if there is more to do.
        """

    def slice_end(self) -> float:
        """Return the time of `time.perf_counter` at which a step that begins now should stop."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call at `when`, never before."""

    def run_in_thread(
        self, work: Callable[[], None], done: Callable[[OSError | None], None]
    ) -> None:
        """Run blocking `work` elsewhere, then call `done` back here with its OSError or None."""
