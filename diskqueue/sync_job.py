"""The blocking half of a sync: fsync, metadata, deletions.

`DiskQueue.prepare_sync` makes a job on the thread that owns the queue, `run` may then work in any
other while the queue goes on, and `DiskQueue.complete_sync` takes the result back. So a job holds
copies only: descriptors of its own, the text of the metadata, paths.

The order of the steps makes a crash between any two of them harmless:

1. fsync the segments, so that the metadata never points beyond what is durable;
2. rename damaged segments whose records are all finished; a segment the old metadata points to may
   be missing, while one before the new read position would be deleted at the next start;
3. replace the metadata;
4. delete the segments that the new metadata no longer needs.

On a full disk step 3 has no room, and would never get any if it had to come before step 4: then
the two change places. A crash in between leaves metadata that points to segments that are missing,
and a start skips these.
"""

import contextlib
import errno
import os
import threading
from dataclasses import dataclass, field

from diskqueue import layout
from diskqueue.recovery import SegmentState

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class FsyncTarget:
    """A segment whose content up to `size_bytes` the job makes durable."""

    state: SegmentState
    path: str
    fd: int  # the job's own descriptor, or -1 to open the path
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class SyncJob:
    """One sync under way. The queue's owner passes it on, calls `run` once, and gives it back."""

    directory: str
    metadata_path: str
    # None makes the appended records durable and leaves the metadata for a later sync.
    text: bytes | None
    targets: list[FsyncTarget]
    # The directory has entries that are not durable yet.
    has_new_files: bool
    removals: list[SegmentState]
    removal_paths: list[str] = field(default_factory=list)
    append_count: int
    commit_count: int
    lock: threading.Lock
    is_cancelled: bool = field(default=False, init=False)
    are_segments_durable: bool = field(default=False, init=False)

    def run(self) -> None:
        """Does the blocking work.

        Raises:
            OSError: at least one step failed; the later ones were not tried.
        """
        with self.lock:
            try:
                if not self.is_cancelled:
                    self._run_steps()
            finally:
                self.release()

    def release(self) -> None:
        """Closes the descriptors; called by whoever ends the job."""
        for target in self.targets:
            if target.fd >= 0:
                os.close(target.fd)
                target.fd = -1

    def _run_steps(self) -> None:
        for target in self.targets:
            _fsync_segment(target)
        self.are_segments_durable = True
        if self.text is None:
            if self.has_new_files:
                layout.fsync_directory(self.directory)
            return
        removals = list(zip(self.removals, self.removal_paths, strict=True))
        for state, path in removals:
            if state.damage is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, layout.quarantine_path(path))
        consumed = [path for state, path in removals if state.damage is None]
        try:
            layout.write_atomically(self.metadata_path, self.text)
        except OSError as error:
            if error.errno not in _NO_ROOM or not consumed:
                raise
            _unlink_all(consumed)
            layout.write_atomically(self.metadata_path, self.text)
        _unlink_all(consumed)
        if removals:
            layout.fsync_directory(self.directory)


def _unlink_all(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _fsync_segment(target: FsyncTarget) -> None:
    if target.fd >= 0:
        os.fsync(target.fd)
        return
    fd = os.open(target.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_queue(
    directory: str, segments: list[tuple[SegmentState, str]], metadata_path: str
) -> None:
    """Removes all files of a queue: segments from the oldest on, then what leads to them.

    Raises:
        OSError: a file could not be removed; all others were.
    """
    failure: OSError | None = None
    for segment, path in segments:
        try:
            if segment.damage is not None:
                os.rename(path, layout.quarantine_path(path))
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            failure = failure or error
    try:
        os.unlink(metadata_path)
    except FileNotFoundError:
        pass
    except OSError as error:
        failure = failure or error
    if failure is not None:
        raise failure
    layout.fsync_directory(directory)
