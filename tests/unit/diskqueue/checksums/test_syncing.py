"""Two fsyncs at a time."""

import errno
import os
import threading
from pathlib import Path

import pytest

from diskqueue.checksums.syncing import fsync_both


@pytest.fixture
def fds(tmp_path: Path) -> tuple[int, int]:
    return tuple(  # type: ignore[return-value]
        os.open(tmp_path / name, os.O_CREAT | os.O_RDWR) for name in ("a", "b")
    )


def test_both_are_synced_at_the_same_time(
    fds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2, timeout=10)
    synced = set()

    def fsync(fd: int) -> None:
        barrier.wait()
        synced.add(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    fsync_both(*fds)

    assert synced == set(fds)


@pytest.mark.parametrize("index", [0, 1])
def test_the_failure_of_either_is_told(
    fds: tuple[int, int], monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    def fsync(fd: int) -> None:
        if fd == fds[index]:
            raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(OSError, match="broken"):
        fsync_both(*fds)
