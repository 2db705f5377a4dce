"""Go's programs, where they are on PATH."""

import shutil
from collections.abc import Callable

import pytest

from tests.support.daemon_process import find_go_program

FindGo = Callable[[str], str]


@pytest.fixture
def find_go() -> FindGo:
    """Return the path of a program of NSQ, or skip the test."""

    def find(name: str) -> str:
        # Ours have the names of three of them.
        is_ambiguous = name in {"nsqd", "nsqlookupd", "nsqadmin"}
        path = find_go_program(name) if is_ambiguous else shutil.which(name)
        if path is None:
            pytest.skip(f"Go's {name} is not on PATH")
        return path

    return find
