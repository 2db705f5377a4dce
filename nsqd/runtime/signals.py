"""Signals of both daemons: which stop it, which make it read its files again, which do nothing.

    SIGINT SIGTERM                             stop, code 0
    SIGQUIT SIGABRT SIGTRAP SIGSYS SIGSTKFLT   print all stacks, then stop as above, code 2
    SIGHUP                                     read files again
    SIGUSR1 SIGUSR2 and all others that a Go program does not obey: ignored

So no signal ends a daemon before its messages are saved, but for SIGKILL and those of a fault of
the process itself (SIGSEGV, SIGBUS, SIGILL, SIGFPE), after which its memory can't be trusted.
"""

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable

# The exit code of a Go program that prints its stacks and ends.
DUMP_EXIT_CODE = 2

_STOPPING = ("SIGINT", "SIGTERM")
# A Go program prints its stacks at these and ends at once.
_DUMPING = ("SIGQUIT", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGSTKFLT")
# The default action of each would end the process; a Go program goes on. Names, as not every system
# has all of them.
_IGNORED = (
    *("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGXFSZ"),
    *("SIGIO", "SIGPWR", "SIGPIPE", "SIGEMT"),
)


def ignore_signals() -> None:
    """Ignore the signals that a Go program does not obey; to be called before there is a loop."""
    for number in (*_numbers(_IGNORED), *_real_time_numbers()):
        signal.signal(number, signal.SIG_IGN)


def handle_signals(
    loop: asyncio.AbstractEventLoop,
    *,
    stop: Callable[[int], object],
    reload: Callable[[], object],
) -> None:
    """Have the loop call these for the other signals.

    Args:
        stop: ends the daemon in good order, with that exit code.
        reload: has the files read again.
    """
    for number in _numbers(_STOPPING):
        loop.add_signal_handler(number, stop, 0)
    loop.add_signal_handler(signal.SIGHUP, reload)
    for number in _numbers(_DUMPING):
        loop.add_signal_handler(number, _dump_and_stop, stop)


def _dump_and_stop(stop: Callable[[int], object]) -> None:
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    stop(DUMP_EXIT_CODE)


def _numbers(names: tuple[str, ...]) -> list[signal.Signals]:
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _real_time_numbers() -> range:
    if not hasattr(signal, "SIGRTMIN"):
        return range(0)
    return range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
