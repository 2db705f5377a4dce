"""The event loop: the broker's scheduler on it, polling, tasks, and when garbage is collected."""

import asyncio
import gc
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

from nsqd.runtime.turns import running_turns

# A call that blocks, and may raise OSError.
Work = Callable[[], None]

# Reads that come closer than this are dense traffic.
DENSE_READS_S = 0.0002
LOAD_CHECK_S = 1.0
CLOSING_THREADS = 16
SWEEP_INTERVAL_S = 30.0
# The collector may look at this many objects, which takes a few milliseconds.
SWEEP_MAX_OBJECTS = 50_000


class LoopScheduler:
    """The event loop as the broker's Scheduler."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.time = loop.time
        self.call_soon = loop.call_soon
        self.call_at = loop.call_at
        turns = running_turns()
        self.share = turns.share
        self.slice_end = turns.slice_end
        self.wall_time_ns = time.time_ns
        self._offset_ns = time.time_ns() - round(loop.time() * 1e9)

    def steady_time_ns(self) -> int:
        """Return the wall clock as it would be if it had not been set since the start."""
        return round(self._loop.time() * 1e9) + self._offset_ns

    def run_in_thread(
        self, work: Callable[[], None], done: Callable[[OSError | None], None]
    ) -> None:
        """Run blocking work in the executor; any error but an OSError is a bug, and stops nsqd."""

        def finished(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
            done(error)

        self._loop.run_in_executor(None, work).add_done_callback(finished)


class SpinPoll:
    """Keep the loop awake for a moment under dense traffic, instead of letting it sleep.

    Waking a sleeping process costs a lone publisher that waits for its OK more than the rest of
    the round trip: 12,000 publishes a second without polling, 25,000 with it, on an idle virtual
    machine. Polling takes a core: on a busy machine it would keep the client from running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, spin_s: float) -> None:
        self._loop = loop
        self._spin_s = spin_s
        self._last_read = 0.0
        self._is_spinning = False
        self._has_room = True
        self._looks_again_at = 0.0

    def on_read(self) -> None:
        """Note a read; if the one before was just now, poll for the next."""
        now = time.perf_counter()
        if now - self._last_read < DENSE_READS_S and not self._is_spinning:
            if now >= self._looks_again_at:
                self._looks_again_at = now + LOAD_CHECK_S
                # Client and daemon alone may keep two cores busy.
                self._has_room = os.getloadavg()[0] < (os.cpu_count() or 1) + 0.5
            if self._has_room:
                self._is_spinning = True
                self._loop.call_soon(self._spin)
        self._last_read = now

    def _spin(self) -> None:
        if time.perf_counter() - self._last_read < self._spin_s:
            self._loop.call_soon(self._spin)
        else:
            self._is_spinning = False


class GarbageSweeper:
    """Run the cyclic garbage collector only when it has little to look at.

    The automatic collector would stop the loop for half a second with millions of messages queued,
    and find nothing: the hot path makes no cycles. Those of failed requests and tracebacks are
    swept up here while the queues are short.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._survivor_count = 0

    def hold(self) -> None:
        """Collect nothing until `start`: while thousands of queues are loaded there is no garbage.

        The automatic collector would look at all of them again and again, for half of the time.
        """
        gc.collect()
        gc.disable()

    def start(self) -> None:
        """Take over from the automatic collector; objects that exist now are never looked at."""
        gc.freeze()
        gc.disable()
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def stop(self) -> None:
        """Give the automatic collector back, but for the objects of the start: the process ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gc.enable()

    def _sweep(self) -> None:
        # The first count: objects made since the last collection, less those that went.
        if self._survivor_count + gc.get_count()[0] <= SWEEP_MAX_OBJECTS:
            gc.collect()
            self._survivor_count = len(gc.get_objects())
        self._timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)


def run_in_threads(works: Sequence[Work]) -> list[OSError]:
    """Run blocking work side by side: fsyncs that wait together are done together."""
    with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing") as threads:
        futures = [threads.submit(work) for work in works]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, OSError):
            raise error
    return [error for error in errors if isinstance(error, OSError)]


def start_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """Start a task; an error that ends it reaches the exception handler of the loop."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report_failure)
    return task


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended; its own failure was reported when it happened."""
    task.cancel()
    await asyncio.wait([task])


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        message = f"task {task.get_name()} failed"
        task.get_loop().call_exception_handler({"message": message, "exception": error})
