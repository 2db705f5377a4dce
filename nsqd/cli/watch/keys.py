"""Keys of a terminal: bytes to names, and the terminal in a mode that gives them one by one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

_NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x03": "ctrl-c",
    b"\x1b": "escape",
}
_READ_BYTES: Final = 256


def read_keys(data: bytes) -> Iterator[str]:
    """Yield the keys in the bytes read; sequences that have no name here are left out."""
    while data:
        sequence = next((each for each in _NAMES if data.startswith(each)), None)
        if sequence == b"\x1b" and data[1:2] in (b"[", b"O"):
            # Another sequence: it ends with its first letter.
            end = next((i for i, byte in enumerate(data[2:], 3) if 64 <= byte <= 126), len(data))
            data = data[end:]
        elif sequence is not None:
            yield _NAMES[sequence]
            data = data[len(sequence) :]
        else:
            text = data.decode("utf-8", "ignore")[:1]
            if text and text.isprintable():
                yield text
            data = data[max(1, len(text.encode())) :]


class Keys:
    """A context in which each key calls a function; the terminal is as before behind it."""

    def __init__(self, press: Callable[[str], None]) -> None:
        """Args: press: is called with the name of each key."""
        self._press = press
        self._descriptor = sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        running = asyncio.get_running_loop()
        running.add_reader(self._descriptor, self._read)
        # A shell that was in the foreground meanwhile has its own mode.
        running.add_signal_handler(signal.SIGCONT, tty.setcbreak, self._descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running = asyncio.get_running_loop()
        running.remove_reader(self._descriptor)
        running.remove_signal_handler(signal.SIGCONT)
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        if not data:
            self._press("q")  # The terminal is gone.
            return
        for key in read_keys(data):
            self._press(key)
