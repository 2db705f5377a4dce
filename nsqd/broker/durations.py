"""Durations: how long things took, in bounded memory.

`Histogram` counts durations between fixed bounds since the start: those of FINs and of syncs.
`SyncTimes` tells about the syncs of all disk queues: how long, how many failed, which still run.

`LatencyQuantiles` tells quantiles of the latencies, from publish to FIN, in a window of time. A
sketch holds levels of values. A value of level h stands for 2**h latencies. When a level is full it
is sorted, and of its smaller values every second one moves up, to stand for itself and for its
neighbour; the offset alternates, so that the errors cancel. Its greatest values stay, because high
quantiles are asked for most: the maximum is always exact. Up to `LEVEL_CAPACITY` latencies all
quantiles are exact. Two sketches cover half a window each; when the current one has had its time,
the older is dropped.
"""

import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import add

LEVEL_CAPACITY = 600
# The more a full level gives away at a time, the less often it is sorted. At 450 of 600 a latency
# costs 0.18 us in batches of 100, and of a million no quantile is off by 0.5 % in rank.
_KEPT = LEVEL_CAPACITY // 4

# How many latencies there were, and each quantile with its latency in nanoseconds.
Result = tuple[int, list[tuple[float, int]]]


class Histogram:
    """Counts of values by upper bound, as Prometheus has them, with their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Args: bounds: ascending; a value equal to a bound counts below it."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is of values beyond all bounds
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def merge(self, other: "Histogram") -> None:
        """Add the values of another histogram, which has the same bounds."""
        assert self.bounds == other.bounds
        self.counts = list(map(add, self.counts, other.counts))
        self.total += other.total

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return, for each bound, how many values there were up to it; then how many in all."""
        return list(accumulate(self.counts))


class SyncTimes:
    """How the syncs of all disk queues went: durations, failures, the last good one, the oldest."""

    __slots__ = ("_running", "failed_count", "histogram", "last_success_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Args: bounds: of the histogram of durations, in seconds."""
        self.histogram = Histogram(bounds)
        self.failed_count = 0
        self.last_success_s = 0.0  # wall clock; 0 before the first
        # When each sync that runs has begun, the oldest first.
        self._running: dict[object, float] = {}

    @property
    def count(self) -> int:
        """How many syncs have ended."""
        return self.histogram.count

    @property
    def longest_running_s(self) -> float:
        """For how long the oldest of the syncs that run has been running; 0 if none runs."""
        began = next(iter(self._running.values()), None)
        return 0.0 if began is None else time.perf_counter() - began

    def begin(self, syncer: object) -> None:
        """Note that a sync begins.

        Args:
            syncer: runs one sync at a time, and is named again when it ends.
        """
        self._running[syncer] = time.perf_counter()

    def end(self, syncer: object, error: Exception | None) -> None:
        """Note that the sync has ended, and its error if it failed."""
        self.histogram.observe(time.perf_counter() - self._running.pop(syncer))
        if error is None:
            self.last_success_s = time.time()
        else:
            self.failed_count += 1


class LatencyQuantiles:
    """The latencies of one channel; a topic shows `merge` of those of its channels."""

    __slots__ = ("_current", "_current_since", "_half_window_s", "_older", "quantiles")

    def __init__(self, quantiles: tuple[float, ...], window_s: float) -> None:
        """Start without latencies.

        Args:
            quantiles: those to report, each above 0 and up to 1, in the order of the report.
            window_s: how long a latency counts at most; at least it counts for half of that.
        """
        assert window_s > 0, "a window without width has no latencies"
        self.quantiles = quantiles
        self._half_window_s = window_s / 2
        self._older = _Sketch()
        self._current = _Sketch()
        self._current_since: float | None = None

    def insert_many(self, values_ns: Iterable[int], now: float) -> None:
        """Add latencies; the more at a time, the cheaper."""
        self._move_window(now)
        self._current.insert_many(values_ns)

    def result(self, now: float) -> Result:
        """Return how many latencies the window has, and the quantiles; zeros if there are none."""
        return self.merge((self,), now)

    @staticmethod
    def merge(several: "Iterable[LatencyQuantiles]", now: float) -> Result:
        """Return the result over the latencies of several channels.

        Args:
            several: all with the same quantiles; none at all have no quantiles to report.
        """
        quantiles: tuple[float, ...] = ()
        sketches: list[_Sketch] = []
        for each in several:
            quantiles = each.quantiles
            sketches += each.sketches(now)
        count = sum(sketch.count for sketch in sketches)
        if not count:
            return 0, [(quantile, 0) for quantile in quantiles]
        weighted = sorted(chain.from_iterable(sketch.weighted_values() for sketch in sketches))
        ranks = list(accumulate(weight for _, weight in weighted))
        return count, [
            # A wall clock that was set back makes latencies negative.
            (quantile, max(int(weighted[bisect_right(ranks, _index(count, quantile))][0]), 0))
            for quantile in quantiles
        ]

    def sketches(self, now: float) -> "tuple[_Sketch, _Sketch]":
        """Return the two halves of the window, for `merge` alone."""
        self._move_window(now)
        return self._older, self._current

    def _move_window(self, now: float) -> None:
        if self._current_since is None:
            self._current_since = now
        elapsed_s = now - self._current_since
        if elapsed_s <= self._half_window_s:
            return
        is_older_still_good = elapsed_s <= 2 * self._half_window_s
        self._older = self._current if is_older_still_good else _Sketch()
        self._current = _Sketch()
        # A whole number of halves, so that an idle channel's window keeps its pace.
        self._current_since = now - elapsed_s % self._half_window_s


def _index(count: int, quantile: float) -> int:
    """Return the position of the quantile among so many sorted values, as nsqd chooses it."""
    return min(max(int(count * quantile) - 1, 0), count - 1)


class _Sketch:
    """Latencies in any number, of which at most `LEVEL_CAPACITY` per doubling are kept."""

    __slots__ = ("_levels", "_takes_odd", "count")

    def __init__(self) -> None:
        self.count = 0
        # The lowest level takes every insert, and a list is the fastest at that. The others are
        # doubles, as in nsqd's JSON: a fifth of the memory.
        self._levels: list[list[float] | array[float]] = [[]]
        self._takes_odd = [False]

    def insert_many(self, values: Iterable[int]) -> None:
        lowest = self._levels[0]
        size = len(lowest)
        lowest.extend(values)
        self.count += len(lowest) - size
        height = 0
        while len(self._levels[height]) > LEVEL_CAPACITY:
            self._compact(height)
            height += 1

    def weighted_values(self) -> Iterable[tuple[float, int]]:
        return chain.from_iterable(
            zip(level, repeat(1 << height)) for height, level in enumerate(self._levels)
        )

    def _compact(self, height: int) -> None:
        values = sorted(self._levels[height])
        # An even number, as each value that moves up stands for two.
        end = (len(values) - _KEPT) & ~1
        if height + 1 == len(self._levels):
            self._levels.append(array("d"))
            self._takes_odd.append(False)
        self._levels[height + 1].extend(array("d", values[self._takes_odd[height] : end : 2]))
        self._levels[height] = array("d", values[end:]) if height else values[end:]
        self._takes_odd[height] = not self._takes_odd[height]
