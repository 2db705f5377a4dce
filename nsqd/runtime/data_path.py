"""The data path as a whole: its lock, its content at the start, and the id of its node."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diskqueue.identity import make_identity, read_identity, write_identity
from diskqueue.layout import QueueFiles, list_queues
from nsqd.broker.archive.keeper import DIRECTORY_NAME
from nsqd.config.flags import OptionsError

NODE_FILE_NAME = "nsqd.node"

logger = logging.getLogger(__name__)

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


def ensure_node_id(path: Path) -> str:
    """Return the id of the node whose data path this is, made and noted if it has none.

    Without room on the disk it is that of this process only: consumers have to make room first.
    """
    file_path = path / NODE_FILE_NAME
    node_id = None
    try:
        node_id = read_identity(file_path)
        if node_id is None:
            node_id = make_identity()
            write_identity(file_path, node_id)
    except OSError as error:
        logger.warning("NSQ: the node has no id across restarts: %s - %s", file_path, error)
    return node_id or make_identity()


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of the data path at the start, looked at once."""

    queues: Mapping[str, QueueFiles]
    # When a file last changed: message ids up to then may have been used.
    newest_change_ns: int


def list_data_path(path: Path) -> Listing:
    """Look at every file of the data path, and at the dates of the archive.

    Raises:
        OSError: the directory can't be listed.
    """
    changes = _find_changes(path)
    queues = list_queues(path, changes)
    times_ns = list(changes.values())
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        # Its files have the names of the topics' own.
        times_ns += _find_changes(path / DIRECTORY_NAME).values()
    # A date far in the future comes from no earlier run of nsqd, and ids can't hold it.
    latest_ns = time.time_ns() + MAX_CLOCK_STEP_NS
    past = (time_ns for time_ns in times_ns if time_ns <= latest_ns)
    return Listing(queues, max(past, default=0))


def _find_changes(path: Path) -> dict[str, int]:
    """Return when each file of a directory last changed, 0 for other things than files."""
    with os.scandir(path) as entries:
        # Links are not followed: they may lead to themselves.
        return {
            entry.name: entry.stat(follow_symlinks=False).st_mtime_ns
            if entry.is_file(follow_symlinks=False)
            else 0
            for entry in entries
        }
