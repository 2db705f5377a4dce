"""The process of a daemon: its signals, its memory, its service manager, its end and exit code.

`run_daemon` is the life of nsqd, nsqlookupd and nsqadmin, from the parsed options to the exit code:
0 after a clean stop, 1 if the daemon cannot start or has failed, 2 after a signal such as SIGQUIT.

    SIGINT SIGTERM                             stop, code 0
    SIGQUIT SIGABRT SIGTRAP SIGSYS SIGSTKFLT   print all stacks, then stop as above, code 2
    SIGHUP                                     read files again
    SIGUSR1 SIGUSR2 and all others that a Go program does not obey: ignored

So no signal ends a daemon before its messages are saved, but for SIGKILL and those of a fault of
the process itself (SIGSEGV, SIGBUS, SIGILL, SIGFPE), after which its memory can't be trusted.
"""

import asyncio
import faulthandler
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol

from nsqd.config import logs
from nsqd.config.flags import OptionsError
from nsqd.runtime.listen import ListenError, raise_open_files_limit
from nsqd.runtime.systemd import ServiceManager

logger = logging.getLogger(__name__)

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


class StartError(Exception):
    """The daemon can't start; the text is the line that the operator reads."""


class Ending:
    """Whether the daemon is to end, and its exit code: the highest that was asked for."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self.exit_code = 0

    @property
    def is_requested(self) -> bool:
        """Whether the daemon is to end."""
        return self._requested.is_set()

    def request(self, exit_code: int = 0) -> None:
        """Have the daemon end in good order."""
        self.exit_code = max(self.exit_code, exit_code)
        self._requested.set()

    async def wait(self) -> int:
        """Wait for the first request; return the exit code."""
        await self._requested.wait()
        return self.exit_code

    def on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error that escaped a callback: OSError is logged, any other ends the daemon."""
        error = context.get("exception")
        if isinstance(error, OSError):
            # Out of descriptors at accept (the loop tries again), or a connection that broke.
            logger.error("%s: %s", context["message"], error)
            return
        logger.critical("%s", context["message"], exc_info=error)
        self.request(1)


class Daemon(Protocol):
    """A daemon as its process sees it. `close` may follow a start that failed."""

    @property
    def ending(self) -> Ending: ...
    @property
    def ports(self) -> str: ...  # in words, once started
    async def start(self) -> None: ...
    def reload(self) -> None: ...
    async def close(self) -> None: ...


def run_daemon(
    program: str,
    make_daemon: Callable[[], Daemon],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
    last_work: str = "Stopping",
) -> int:
    """Run a daemon until it is told to stop, or cannot start; return the exit code.

    Args:
        make_daemon: called on the running loop; may raise as `start` may: StartError with a whole
            line, OptionsError or ListenError with the reason.
        last_work: the status that the service manager shows while the daemon closes.
    """
    raise_open_files_limit()
    ignore_signals()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_serve(make_daemon, last_work))
    except StartError as error:
        logs.fatal_line(program, str(error))
    except (ListenError, OptionsError) as error:
        logs.fatal_line(program, f"failed to instantiate {program} - {error}")
    return 1


async def _serve(make_daemon: Callable[[], Daemon], last_work: str) -> int:
    daemon = make_daemon()
    loop = asyncio.get_running_loop()
    handle_signals(loop, stop=daemon.ending.request, reload=daemon.reload)
    service_manager = ServiceManager(loop)
    try:
        await daemon.start()
        service_manager.ready(f"Serving on {daemon.ports}")
        logger.info("stopping exit_code=%d", await daemon.ending.wait())
        service_manager.stopping(last_work)
    finally:
        await daemon.close()
    return daemon.ending.exit_code


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
