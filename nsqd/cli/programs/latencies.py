"""Latencies: a histogram of times with steps of two percent, of one size however many there are."""

from __future__ import annotations

import math
from typing import Final

_STEPS: Final = 50  # in a factor of e
_SMALLEST_S: Final = 1e-6
_BUCKETS: Final = 1000  # up to 480 s; longer latencies are counted in the last


class Latencies:
    """Counts of times; percentiles are exact to two percent."""

    __slots__ = ("_buckets", "count", "largest_s")

    def __init__(self) -> None:
        """Start empty."""
        self._buckets = [0] * _BUCKETS
        self.count = 0
        self.largest_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a time, or several that are equal."""
        steps = math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S) * _STEPS
        self._buckets[min(int(steps), _BUCKETS - 1)] += count
        self.count += count
        self.largest_s = max(self.largest_s, seconds)

    def find_percentile_s(self, percent: float) -> float:
        """Return the time below which so many percent are; 0.0 without any."""
        wanted = self.count * percent / 100
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                upper_s = _SMALLEST_S * math.exp((index + 1) / _STEPS)
                return min(upper_s, self.largest_s)
        return 0.0
