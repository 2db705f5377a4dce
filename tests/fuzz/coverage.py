"""LineCoverage: which steps from line to line of the product a call took."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tests.support.daemon_process import REPOSITORY

PACKAGES = tuple(f"{REPOSITORY / name}/" for name in ("nsqd", "diskqueue", "lookupd"))

_Trace = Callable[[FrameType, str, Any], Any]
_Step = tuple[CodeType, int, int]


class LineCoverage:
    """Finds out whether an input makes the product do something that no input did before."""

    def __init__(self) -> None:
        self.steps: set[_Step] = set()
        self._is_ours: dict[CodeType, bool] = {}

    def is_new(self, call: Callable[[], object]) -> bool:
        """Run the call; say whether it took a step for the first time."""
        before = len(self.steps)
        previous = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(previous)
        return len(self.steps) > before

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> _Trace | None:
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            is_ours = self._is_ours[code] = code.co_filename.startswith(PACKAGES)
        if not is_ours:
            return None
        line = 0
        steps = self.steps

        def follow(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal line
            if event == "line":
                steps.add((code, line, frame.f_lineno))
                line = frame.f_lineno
            return follow

        return follow
