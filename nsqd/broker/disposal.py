"""Disposal: gives the memory of dropped messages back, a slice at a time.

To free five million messages takes Python a second. A queue that is emptied or deleted puts new
containers in the place of its old ones and leaves the old ones here.
"""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

from nsqd.broker.scheduler import Scheduler

# A container of messages, or of lists of messages, that has no other owner.
Dropped: TypeAlias = dict[Any, Any] | list[Any] | deque[Any]

# How many messages are freed between two looks at the clock, which takes about 0.1 ms.
_COUNT_PER_LOOK = 256
# A deque has pieces of a queue, with up to 4096 messages each.
_PIECES_PER_LOOK = 8


def dispose(scheduler: Scheduler, dropped: Iterable[Dropped]) -> None:
    """Free containers and their contents, in round robin with other work."""
    disposal = _Disposal(scheduler, [container for container in dropped if container])
    if disposal.run_step():
        scheduler.share(disposal.run_step)


class _Disposal:
    """The containers that are left."""

    __slots__ = ("_left", "_scheduler")

    def __init__(self, scheduler: Scheduler, left: list[Dropped]) -> None:
        self._scheduler = scheduler
        self._left = left

    def run_step(self) -> bool:
        """Free as much as one slice has time for; return whether there is more."""
        end = self._scheduler.slice_end()
        while self._left:
            self._shorten(self._left[-1])
            if time.perf_counter() >= end:
                break
        return bool(self._left)

    def _shorten(self, container: Dropped) -> None:
        """Remove some items from the end of the last container, or the container if it is empty."""
        if not container:
            self._left.pop()
            return
        count = min(len(container), _COUNT_PER_LOOK)
        if isinstance(container, list):
            items = container[-count:]
            del container[-count:]
        elif isinstance(container, deque):
            items = [container.pop() for _ in range(min(count, _PIECES_PER_LOOK))]
        else:
            items = [container.popitem()[1] for _ in range(count)]
        self._left += [item for item in items if type(item) is list and len(item) > _COUNT_PER_LOOK]
