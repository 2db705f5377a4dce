"""CallFaults: system calls that fail, one after the other."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest


class CallFaults:
    """Counts the calls of each kind, and lets one of them fail, or it and all behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
        """Args: names: of functions of `os`."""
        self.counts: Counter[str] = Counter()
        self.failing = ("", 0)
        self.is_lasting = False
        # No test of faults cuts the power, and fsyncs would take most of the time.
        monkeypatch.setattr(os, "fsync", lambda _fd: None)
        for name in names:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def may_fail(*arguments: Any, **options: Any) -> Any:
            self.counts[name] += 1
            kind, first = self.failing
            number = self.counts[name]
            if name == kind and (number == first or (number > first and self.is_lasting)):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **options)

        return may_fail

    def begin(self, kind: str = "", first: int = 0, *, is_lasting: bool = False) -> None:
        """Count from 0, and let the call of this number fail; with "" none."""
        self.failing = (kind, first)
        self.is_lasting = is_lasting
        self.counts.clear()


class FreedDescriptor:
    """Frees descriptor 0 before one of the calls that make descriptors, which then gets it.

    A process that was started without a stdin has it for any file.
    """

    CALLS = ("open", "dup")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._freed_at = 0
        self._kept_fd = -1
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call: Callable[..., int]) -> Callable[..., int]:
        def may_get_0(*arguments: Any) -> int:
            self.count += 1
            if self.count == self._freed_at:
                os.close(0)
            return call(*arguments)

        return may_get_0

    def begin(self, number: int = 0) -> None:
        """Count from 0, and let the call of this number get the descriptor; none with 0."""
        self._freed_at = 0
        self.count = 0
        self._kept_fd = os.dup(0)
        self.count = 0
        self._freed_at = number

    def end(self) -> bool:
        """Give stdin its descriptor back; return whether nothing had it any more."""
        self._freed_at = 0
        try:
            is_free = os.path.sameopenfile(0, self._kept_fd)
        except OSError:
            is_free = True
        os.dup2(self._kept_fd, 0)
        os.close(self._kept_fd)
        return is_free
