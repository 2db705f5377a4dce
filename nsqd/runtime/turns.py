"""Turns: shares the event loop fairly among clients, queues and documents that have much to do.

One turn of the loop serves every socket that is ready. A client, a channel or a long answer does a
slice of its work in it, about a millisecond, and leaves the rest here. The rest of all of them is
worked off in round robin, another slice in each turn, so that a client waits for a few slices
however much work the others have brought:

    turn of the loop:  [socket] [socket] ... [1 ms of the work that was left, one step of each]

This is the only place that says how long a slice is.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

# The work of one turn of the loop, beside one step that may be under way. A message needs about
# three turns from PUB to FIN, so its latency grows by three slices while others are busy.
SLICE_S = 0.001
# Each of many busy ones gets at least this much at a time: switching costs about 10 us.
MIN_SLICE_S = 0.0001
# So much new work is done at once, beside the work that was left: a thousand clients may be ready
# in one turn.
MAX_NEW_WORK_S = 0.003

Step = Callable[[], bool]


class Turns:
    """The work that was left for later turns of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        # The time that new work has taken since work that was left had its turn.
        self._new_work_s = 0.0
        self._steps: deque[Step] = deque()
        self._is_planned = False

    def slice_end(self) -> float:
        """Return the time of `time.perf_counter` at which work that begins now should stop.

        The more work waits, the shorter is the slice of each.
        """
        share_s = SLICE_S / (1 + len(self._steps))
        return time.perf_counter() + (share_s if share_s > MIN_SLICE_S else MIN_SLICE_S)

    def do_now(self, step: Callable[[float], bool]) -> bool:
        """Do a step of new work at once, if there is time for it; return whether work is left.

        Work that is left has to be shared, which begins a turn with time for new work. No loop
        tells when a turn begins, so that the new work of several short turns is counted together;
        then one step in 3 ms is shared needlessly.

        Args:
            step: gets the end of its slice, as `slice_end` would return it.
        """
        if self._new_work_s >= MAX_NEW_WORK_S:
            return True
        began = time.perf_counter()
        share_s = SLICE_S / (1 + len(self._steps))
        try:
            return step(began + (share_s if share_s > MIN_SLICE_S else MIN_SLICE_S))
        finally:
            self._new_work_s += time.perf_counter() - began

    def share(self, step: Step) -> None:
        """Call `step` in later turns of the loop until it returns False.

        A step does a little of its work: some hundred messages, or as much as `slice_end` allows.
        It returns True if there is more, and is called again after the other steps. It must not
        raise, but for a bug.
        """
        self._steps.append(step)
        if not self._is_planned:
            self._is_planned = True
            self._call_soon(self._run)

    async def next_turn(self) -> None:
        """Wait in line with the shared work: a coroutine calls this after each of its slices."""
        turn = asyncio.get_running_loop().create_future()
        self.share(lambda: _resolve(turn))
        await turn

    def _run(self) -> None:
        steps = self._steps
        self._new_work_s = 0.0
        end = time.perf_counter() + SLICE_S
        try:
            while steps:
                step = steps.popleft()
                if step():
                    steps.append(step)
                if time.perf_counter() >= end:
                    break
        finally:
            # A step that failed is dropped, and its error goes to the loop's exception handler.
            self._is_planned = bool(steps)
            if steps:
                self._call_soon(self._run)


_all_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def running_turns() -> Turns:
    """Return the `Turns` of the running event loop."""
    return turns_of(asyncio.get_running_loop())


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the `Turns` of a loop."""
    turns = _all_turns.get(loop)
    if turns is None:
        turns = _all_turns[loop] = Turns(loop)
    return turns


def _resolve(turn: "asyncio.Future[None]") -> bool:
    if not turn.done():
        turn.set_result(None)
    return False
