"""What the commands of the load generator share: progress on stderr, argument types, signals."""

import argparse
import resource
import signal
import sys
import time
from types import FrameType
from typing import Final, NoReturn

# The connections of a crowd and of its load, with some room.
OPEN_FILES: Final = 65_536


class Progress:
    """Where we are, on stderr: one line that is overwritten on a terminal, else plain lines."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._is_terminal = sys.stderr.isatty()
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        self._done += 1
        elapsed_s = time.monotonic() - self._started
        line = f"[{self._done}/{self._total} {elapsed_s:4.0f} s] {text}"
        if self._is_terminal:
            print(f"\r\033[K{line[:120]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """Read a whole number for argparse.

    Raises:
        ArgumentTypeError: it is less than 1.
    """
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def positive_seconds(text: str) -> float:
    """Read a time limit for argparse.

    Raises:
        ArgumentTypeError: it is not above 0, or more than an hour.
    """
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError("must be more than 0 and at most 3600")
    return value


def end_on_signals() -> None:
    """End on SIGTERM as on Ctrl-C: by way of everything that cleans up.

    SIGINT too, as a shell has background processes ignore it.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def allow_open_files() -> None:
    """Raise the soft limit; the daemons inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
