"""What any unit test may ask for."""

import os
from collections.abc import Iterator

import pytest


def find_open_files() -> set[tuple[str, str]]:
    """Return the descriptors of files, each with its path."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # it has listed the others
            continue
        if path.startswith("/") and not path.startswith(("/dev/", "/proc/")):
            found.add((number, path))
    return found


@pytest.fixture
def closes_files() -> Iterator[None]:
    """Fail a test that leaves a file open: what it calls has to close what it opens."""
    before = find_open_files()
    yield
    assert find_open_files() <= before
