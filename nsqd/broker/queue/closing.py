"""Many queues closed together: two syncs for all of them instead of three for each.

A queue that is closed needs an fsync of its segments, one of its new metadata, and one of the
directory. With thousands of queues that took ten seconds. Here the metadata of all is written
aside, one sync of the file system makes all segments and all that metadata durable, then the
metadata is put in place, and one fsync of the directory follows. So the order is the one of
diskqueue's sync_job: no metadata counts before the records that it points to are durable.

Queues with more to do (finished records, segments to delete) are closed one by one, and so are all
if the sync fails: only the fsync of a file tells whether its own writes were lost.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Callable, Sequence

from diskqueue import DiskQueue, SyncJob, layout

# From this version of Linux on syncfs reports writes that failed.
_SYNCFS_REPORTS = (5, 8)

Work = Callable[[], None]


class FileSystem:
    """The file system of a directory, which can be synced as a whole.

    It is to be opened before the files that it shall make durable: only then does a sync tell of
    writes of theirs that have failed in the meantime.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the directory.

        Raises:
            OSError: that failed.
        """
        self._directory = os.fspath(directory)
        self._fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._syncfs = _find_syncfs()
        self._has_failed = False

    def sync(self) -> bool:
        """Make all files durable, and return whether they are; if not, each needs its own fsync."""
        if self._syncfs is None or self._has_failed:
            return False
        # A failed write is reported once, here; later calls would know nothing of it.
        self._has_failed = self._syncfs(self._fd) != 0
        return not self._has_failed

    def sync_directory(self) -> None:
        """Make creations, renames and deletions in the directory durable.

        Raises:
            OSError: they may not be.
        """
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the directory."""
        os.close(self._fd)


def close_together(
    queues: Sequence[DiskQueue],
    file_system: FileSystem,
    run_all: Callable[[Sequence[Work]], list[OSError]],
) -> list[OSError]:
    """Make everything durable in queues of one directory, and close them; return the errors.

    Args:
        run_all: runs the jobs of queues that are closed one by one, side by side if it can.
    """
    errors: list[OSError] = []
    plain: list[tuple[SyncJob, str]] = []
    others: list[Work] = []
    for queue in queues:
        try:
            job = queue.prepare_sync(is_last=True)
        except OSError as error:
            errors.append(error)
            continue
        if job is None:
            continue
        if not job.is_plain:
            others.append(job.run)
            continue
        try:
            plain.append((job, job.write_metadata_aside()))
        except OSError:
            others.append(job.run)  # its records may become durable nevertheless
    if plain:
        if file_system.sync():
            errors += _put_in_place(plain, file_system)
        else:
            others += [_instead(job, temporary) for job, temporary in plain]
    errors += run_all(others)
    for queue in queues:
        queue.close(is_durable=True)
    return errors


def _put_in_place(plain: list[tuple[SyncJob, str]], file_system: FileSystem) -> list[OSError]:
    errors: list[OSError] = []
    for job, temporary in plain:
        job.release()
        try:
            layout.put_in_place(temporary, job.metadata_path)
        except OSError as error:
            errors.append(error)
    try:
        file_system.sync_directory()
    except OSError as error:
        errors.append(error)
    return errors


def _instead(job: SyncJob, temporary: str) -> Work:
    """Return the work that does the whole job, without the metadata that was written aside."""

    def run() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        job.run()

    return run


def _find_syncfs() -> Callable[[int], int] | None:
    """Find the call of the C library, None where it is missing or reports no errors."""
    if platform.system() != "Linux":
        return None
    version = platform.release().split(".")
    try:
        if tuple(map(int, version[:2])) < _SYNCFS_REPORTS:
            return None
        syncfs: Callable[[int], int] = ctypes.CDLL(None).syncfs
    except (ValueError, OSError, AttributeError):
        return None
    return syncfs
