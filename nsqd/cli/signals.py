"""The signals that end a command, and the exit codes of a command that they cut short."""

from __future__ import annotations

import signal
import time
from typing import Final

from nsqd.cli.output import ExitCode

# `timeout` of coreutils sends a signal to the command, and then to the group that it is in.
_SAME_S: Final = 0.1

CODES: Final = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}


def ending() -> list[signal.Signals]:
    """Return the signals to end with: not SIGHUP where `nohup` has it ignored."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in CODES if number is not signal.SIGHUP or not is_ignored]


class Repeats:
    """Tells the second signal, at which a command leaves at once, from one that came twice."""

    def __init__(self) -> None:
        self._first_at: float | None = None

    def is_second(self) -> bool:
        """Note a signal; say whether it is the second."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        return now - self._first_at > _SAME_S
