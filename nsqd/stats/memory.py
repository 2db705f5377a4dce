"""MemoryStats: the memory of this process, under the names that dashboards of nsqd read.

Python has no heap of spans, so each figure is the nearest one that there is: objects are the blocks
of the allocator, "in use" is the resident part of the process's own (anonymous) memory, "idle" the
reserved part that is not resident, and so "released" too. A collection is due by a number of
objects, not of bytes: next_gc_bytes stays 0.
"""

import gc
import sys
import time
import weakref
from collections import deque
from dataclasses import asdict, dataclass

STATUS_PATH = "/proc/self/status"
PAUSES_KEPT = 256


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """The figures of one moment; the fields are the keys in /stats."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int

    def as_dict(self) -> dict[str, int]:
        """Return the figures by name."""
        return asdict(self)


class _PauseWatch:
    """Times the collections of the garbage collector."""

    def __init__(self) -> None:
        self.pauses_s: deque[float] = deque(maxlen=PAUSES_KEPT)
        self._started = 0.0

    def __call__(self, phase: str, _details: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.perf_counter()
        elif self._started:
            self.pauses_s.append(time.perf_counter() - self._started)


class MemoryReader:
    """Reads memory figures, and times collections for as long as it lives."""

    def __init__(self) -> None:
        watch = _PauseWatch()
        gc.callbacks.append(watch)
        weakref.finalize(self, gc.callbacks.remove, watch)
        self._pauses_s = watch.pauses_s

    def read(self) -> MemoryStats:
        """Return the figures of now."""
        pauses = sorted(self._pauses_s)
        resident, reserved = _read_sizes()
        idle = max(reserved - resident, 0)
        return MemoryStats(
            heap_objects=sys.getallocatedblocks(),
            heap_idle_bytes=idle,
            heap_in_use_bytes=resident,
            heap_released_bytes=idle,
            gc_pause_usec_100=_percentile_us(pauses, 100),
            gc_pause_usec_99=_percentile_us(pauses, 99),
            gc_pause_usec_95=_percentile_us(pauses, 95),
            next_gc_bytes=0,
            gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
        )


def _percentile_us(ordered_s: list[float], percent: int) -> int:
    if not ordered_s:
        return 0
    rank = max(len(ordered_s) * percent // 100, 1)
    return int(ordered_s[rank - 1] * 1e6)


def _read_sizes() -> tuple[int, int]:
    """Return the bytes of our own memory that are resident, and that are reserved.

    Both are 0 where the kernel does not tell.
    """
    sizes = {"RssAnon": 0, "VmData": 0}
    try:
        with open(STATUS_PATH, encoding="ascii", errors="replace") as status:
            for line in status:
                name, _, value = line.partition(":")
                if name in sizes:
                    sizes[name] = int(value.split()[0]) * 1024
    except OSError:
        return 0, 0
    return sizes["RssAnon"], sizes["VmData"]
