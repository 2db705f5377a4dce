"""How far a command is, in one line on stderr.

On a terminal it is written anew four times a second. SIGUSR1, and SIGINFO where there is one,
print it anywhere.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from nsqd.cli.output import can_redraw, note

if TYPE_CHECKING:
    import asyncio
    from typing import Self

_INTERVAL_S: Final = 0.25
_SIGNALS: Final = ("SIGUSR1", "SIGINFO")
_CLEAR: Final = "\r\x1b[K"


class StatusLine:
    """The line, for whoever calls `draw` or `tick`."""

    def __init__(self, show: Callable[[], str], *, is_quiet: bool = False) -> None:
        """Args: show: returns the line; is_quiet: only when it is announced."""
        self.is_live = can_redraw(sys.stderr) and not is_quiet
        self._show = show
        self._shown = ""
        self._due = time.monotonic() + _INTERVAL_S

    def tick(self) -> None:
        """Write the line anew on a terminal, four times a second at most."""
        if self.is_live and time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL_S
            self.draw()

    def draw(self) -> None:
        """Write the line anew, if it has changed."""
        text = self._escaped()
        if text != self._shown:
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()
            self._shown = text

    def clear(self) -> None:
        """Take the line away, for another one that is printed now."""
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = ""

    def announce(self) -> None:
        """Print the line, to stay."""
        self.clear()
        note(self._escaped())

    def _escaped(self) -> str:
        # Imported here: most commands have ended before they show a line.
        from diskqueue.tools.plain_text import escape_text

        return escape_text(self._show())


class ProgressLine:
    """A context of asyncio: the line is shown within it, and gone behind it."""

    def __init__(self, show: Callable[[], str], *, is_quiet: bool = False) -> None:
        """Args: show: returns the line; is_quiet: only at a signal."""
        self._line = StatusLine(show, is_quiet=is_quiet)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        import asyncio  # Here and below: who only draws lines needs no event loop.

        running = asyncio.get_running_loop()
        for name in _SIGNALS:
            if (number := getattr(signal, name, None)) is not None:
                running.add_signal_handler(number, self._line.announce)
        if self._line.is_live:
            self._task = running.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        import asyncio

        running = asyncio.get_running_loop()
        for name in _SIGNALS:
            if (number := getattr(signal, name, None)) is not None:
                running.remove_signal_handler(number)
        if self._task is not None:
            self._task.cancel()
            self.clear()

    def clear(self) -> None:
        """Take the line away, for another one that is printed now."""
        self._line.clear()

    async def _run(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(_INTERVAL_S)
            self._line.draw()
