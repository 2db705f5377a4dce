"""The signals that end a command, and the exit codes of a command that they cut short."""

from __future__ import annotations

import signal
from typing import Final

from nsqd.cli.output import ExitCode

CODES: Final = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}


def ending() -> list[signal.Signals]:
    """Return the signals to end with: not SIGHUP where `nohup` has it ignored."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in CODES if number is not signal.SIGHUP or not is_ignored]
