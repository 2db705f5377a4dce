"""The data path as a whole: its lock, and the newest date in it."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from nsqd.broker.archive.keeper import DIRECTORY_NAME
from nsqd.config.flags import OptionsError

# The farthest that a clock is believed to have been set back since the last run.
MAX_CLOCK_STEP_NS = 365 * 24 * 3600 * 10**9


def lock_directory(path: Path) -> int:
    """Lock the data path against a second nsqd; return the descriptor that holds the lock.

    Raises:
        OptionsError: it is not there, or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        raise OptionsError(f"failed to lock data-path: open {path}: {cause}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        cause = (error.strerror or str(error)).lower()
        raise OptionsError(
            f"failed to lock data-path: cannot flock directory {path} - {cause}"
            " (possibly in use by another instance of nsqd)"
        ) from error
    return descriptor


def newest_change_ns(path: Path) -> int:
    """Return when a file of the data path last changed: ids up to then may have been used.

    A date far in the future comes from no earlier run of nsqd, and ids can't hold it.
    """
    latest = time.time_ns() + MAX_CLOCK_STEP_NS
    changes = _changes_in(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        changes += _changes_in(path / DIRECTORY_NAME)
    return max((change for change in changes if change <= latest), default=0)


def _changes_in(path: Path) -> list[int]:
    with os.scandir(path) as entries:
        # Links are not followed: they may lead to themselves.
        return [
            entry.stat(follow_symlinks=False).st_mtime_ns
            for entry in entries
            if entry.is_file(follow_symlinks=False)
        ]
