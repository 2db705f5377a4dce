"""The event loop of the commands: uvloop where it is installed, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from nsqd.cli import signals

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T], *, is_busy: bool = True, is_verbose: bool = False) -> _T:
    """Run a coroutine to its end.

    Args:
        is_busy: whether it moves many messages; only then is uvloop worth its import.
    """
    level = logging.INFO if is_verbose else logging.CRITICAL
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s: %(message)s")
    with asyncio.Runner(loop_factory=_find_factory() if is_busy else None) as runner:
        return runner.run(main)


def end_with_signals(stop: asyncio.Event) -> None:
    """Have a signal set the event; a second one leaves at once."""
    running = asyncio.get_running_loop()
    repeats = signals.Repeats()

    def interrupt(number: int) -> None:
        if repeats.is_second():
            os._exit(128 + number)
        stop.set()

    for number in signals.ending():
        running.add_signal_handler(number, interrupt, number)


async def in_thread(function: Callable[..., _T], *args: Any) -> _T:
    """Call a function that may block in a daemon thread, for which the end of `nsq` does not wait.

    An executor would: a read of a silent stdin, or a write to a reader that waits, would hold up
    the exit.
    """
    running = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = running.create_future()

    def note(result: _T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(_T, result))

    def work() -> None:
        result, failure = None, None
        try:
            result = function(*args)
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            running.call_soon_threadsafe(note, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await outcome


def _find_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
