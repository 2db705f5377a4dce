"""Histogram: how many durations fell between fixed bounds. Cheap to add to, read at a scrape."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import add


class Histogram:
    """Counts of values by upper bound, as Prometheus has them, with their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Args: bounds: ascending; a value equal to a bound counts below it."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is for what is beyond all bounds
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def merge(self, other: "Histogram") -> None:
        """Add the values of another one with the same bounds."""
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
