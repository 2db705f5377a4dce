"""One row of the table: what greedy clients do, and the daemon it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.daemon_process import Daemon
from bench.load import LoadResult, Start

TOPIC: Final = "greedy"
CHANNEL: Final = "greedy"


@dataclass(frozen=True, slots=True)
class Site:
    """Where and how much: floods last `seconds`, `size` counts messages, topics or clients."""

    daemon: Daemon
    seconds: float
    size: int


# Prepares (connects, fills queues), calls the start signal, is greedy, and says how much it did.
Load = Callable[[Site, Start], LoadResult]


@dataclass(frozen=True, slots=True)
class Row:
    """A load, run in a process of its own beside the pinger on a fresh daemon.

    Attributes:
        size: what `Site.size` will be; `quick_size` with --quick.
        seed: makes, of the size, what puts files into the data directory before the start.
        beside: another load, in a process of its own.
        has_slow_disk: each write to the greedy topic's files takes 200 ms.
        is_ours_only: the row uses flags that nsqd in Go does not have.
    """

    name: str
    text: str
    load: Load
    flags: tuple[str, ...] = ()
    size: int = 0
    quick_size: int = 0
    seed: Callable[[int], Callable[[Path], None]] | None = None
    beside: Load | None = None
    has_slow_disk: bool = False
    is_ours_only: bool = False
