"""ProgressLine: one line on stderr that says how far a command is.

On a terminal it is written anew four times a second. SIGUSR1, and SIGINFO where there is one,
print it anywhere.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from diskqueue.tools.plain_text import escape_text
from nsqd.cli.output import note

_INTERVAL_S: Final = 0.25
_SIGNALS: Final = ("SIGUSR1", "SIGINFO")
_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """A context: the line is shown within it, and gone behind it."""

    def __init__(self, show: Callable[[], str], *, is_quiet: bool = False) -> None:
        """Args: show: returns the line; is_quiet: only at a signal."""
        self._show = show
        self._is_live = sys.stderr.isatty() and not is_quiet
        self._task: asyncio.Task[None] | None = None
        self._shown = ""

    async def __aenter__(self) -> Self:
        running = asyncio.get_running_loop()
        for name in _SIGNALS:
            if (number := getattr(signal, name, None)) is not None:
                running.add_signal_handler(number, self._print)
        if self._is_live:
            self._task = running.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running = asyncio.get_running_loop()
        for name in _SIGNALS:
            if (number := getattr(signal, name, None)) is not None:
                running.remove_signal_handler(number)
        if self._task is not None:
            self._task.cancel()
            self.clear()

    def clear(self) -> None:
        """Take the line away, for another one that is printed now."""
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = ""

    def _print(self) -> None:
        self.clear()
        note(escape_text(self._show()))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            text = escape_text(self._show())
            if text != self._shown:
                sys.stderr.write(_CLEAR + text)
                sys.stderr.flush()
                self._shown = text
