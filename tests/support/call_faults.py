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
