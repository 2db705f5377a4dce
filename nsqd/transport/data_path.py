"""The data path as a whole: one nsqd at a time, and how far its past reaches."""

import fcntl
import os
from pathlib import Path

from nsqd.flags import OptionsError


def lock_directory(path: Path) -> int:
    """Lock the data path against a second nsqd; return the descriptor that holds the lock.

    Raises:
        OptionsError: it is not there, or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
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
    """Return when a file of the data path last changed: ids up to then may have been used."""
    with os.scandir(path) as entries:
        return max((entry.stat().st_mtime_ns for entry in entries if entry.is_file()), default=0)
