"""FakeLoop, FakeTurns and FakeTransport: they move only when a test says so."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

from nsqd.runtime.turns import Turns


class FakeLoop:
    """A clock that moves when told to, and the callbacks that are due by then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()

    def as_loop(self) -> asyncio.AbstractEventLoop:
        """Return this as much of a loop as a connection needs."""
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self.as_loop(), context)
        heapq.heappush(self._heap, (when, next(self._order), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_at(self.now, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_loop())

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.as_loop(), **options)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass, and make the calls that are due."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            when, _, handle = heapq.heappop(self._heap)
            if not handle.cancelled():
                self.now = max(self.now, when)
                handle._run()  # noqa: SLF001 - what loops do
        self.now = end

    def turn(self) -> None:
        """Make the calls that are due now, but not those that they ask for."""
        for _ in range(sum(when <= self.now for when, _, _ in self._heap)):
            _, _, handle = heapq.heappop(self._heap)
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - what loops do

    @property
    def timer_count(self) -> int:
        """How many calls are still to be made."""
        return sum(not handle.cancelled() for _, _, handle in self._heap)


class FakeTurns(Turns):
    """Calls each step once in each turn of a FakeLoop, in slices that a test chooses."""

    def __init__(self, loop: FakeLoop) -> None:
        super().__init__(loop.as_loop())
        self.loop = loop
        self.has_tiny_slices = False  # each slice ends at its first look at the clock
        self.has_full_turns = False  # no turn takes on new work

    def do_now(self, step: Callable[[float], bool]) -> bool:
        return self.has_full_turns or step(self.slice_end())

    def slice_end(self) -> float:
        return 0.0 if self.has_tiny_slices else float("inf")

    def share(self, step: Callable[[], bool]) -> None:
        self.loop.call_soon(lambda: self._call(step))

    def _call(self, step: Callable[[], bool]) -> None:
        if step():
            self.share(step)


class FakeTransport(asyncio.Transport):
    """Keeps what is written; pausing twice, resuming twice or writing after the end fails."""

    def __init__(self, peer: object = ("127.0.0.1", 5)) -> None:
        super().__init__({"peername": peer})
        self.written: list[bytes] = []
        self.buffered_bytes = 0
        self.is_read = True
        self.has_eof = False
        self.is_closed = False
        self.is_aborted = False

    def write(self, data: Any) -> None:
        assert not self.has_eof
        assert not self.is_closed
        assert data
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_reading(self) -> bool:
        return self.is_read

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Accept them: a test calls pause_writing itself."""

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def is_open(self) -> bool:
        """Whether the connection has not begun to end."""
        return not (self.has_eof or self.is_closed or self.is_aborted)
