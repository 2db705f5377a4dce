"""Timings: how long requests took, printed after every so many of them, as Go's tools do."""

from __future__ import annotations

import sys

from nsqd.cli.programs.latencies import Latencies


class Timings:
    """The times of one host, or of all."""

    def __init__(self, name: str, every: int) -> None:
        """Args: every: how many requests a line is about; 0 prints none."""
        self._name = name
        self._every = every
        self._latencies = Latencies()
        self._total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Note requests that took so long; print a line if it is time for one."""
        if self._every <= 0:
            return
        self._latencies.add(seconds, count)
        self._total_s += seconds * count
        if self._latencies.count >= self._every:
            print(self.show(), file=sys.stderr)
            self._latencies = Latencies()
            self._total_s = 0.0

    def show(self) -> str:
        """Return the line."""
        times = self._latencies
        return (
            f"{self._name} finished {times.count}"
            f" - 99th: {times.find_percentile_s(99) * 1000:.02f}ms"
            f" - 95th: {times.find_percentile_s(95) * 1000:.02f}ms"
            f" - avg: {self._total_s / max(times.count, 1) * 1000:.02f}ms"
        )


class HostTimings:
    """The times of each host, if there are several, and of all of them."""

    def __init__(self, names: list[str], every: int) -> None:
        """Args: names: of the hosts."""
        self._all = Timings("[aggregate]:", every)
        self._each = {name: Timings(f"[{name}]:", every if len(names) > 1 else 0) for name in names}

    def add(self, name: str, seconds: float, count: int = 1) -> None:
        """Note requests to a host."""
        self._each[name].add(seconds, count)
        self._all.add(seconds, count)
