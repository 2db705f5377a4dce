"""The writing end of a queue: the newest segment, and the rule when to begin another.

`DiskQueue` owns the one `Writer` of a queue. The write position is `SegmentState.end`, and every
write names its offset. The rest of a failed write is cut off: at once, or if the disk does not let
it, before the next write to that file, by a sync once the segment is complete, and by a close.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diskqueue import layout
from diskqueue.append_job import (
    AppendJob,
    JobState,
    Placement,
    RecordChunk,
    WriteBuffers,
    open_segment,
    place,
    write_buffers,
    write_checksums,
)
from diskqueue.checksums.file import ChecksumFile
from diskqueue.checksums.marks import mark
from diskqueue.checksums.syncing import fsync_both
from diskqueue.segment import RecordLimits, SegmentState, walk

_COPY_BYTES = 1024 * 1024
_REWRITE_BYTES = 1024 * 1024
# Completed segments that wait for their fsync with the descriptor open; more are opened again then.
_MAX_OPEN_FDS = 8
# Known starts of records in the segment being written: at least this far apart, at most so many.
_START_GAP_BYTES = 4096
_MAX_STARTS = 256


@dataclass(slots=True)
class _Crossing:
    """An append that went into more than one segment, and the state before it."""

    segment: SegmentState
    end: int
    known_starts: list[int]
    start_gap_bytes: int
    created: list[SegmentState]
    # Where the last one ended: no longer true once there was another append.
    created_end: int


@dataclass(slots=True)
class FsyncTarget:
    """A segment whose content up to `size_bytes` shall become durable; any thread may do it."""

    state: SegmentState
    path: str
    fd: int  # a descriptor of its own, or -1 to open the path
    size_bytes: int
    # Those of the checksums of the segment; -1 again, and None if it has none.
    checksums_fd: int = -1
    checksums: ChecksumFile | None = None
    checksums_size: int = 0
    are_checksums_durable: bool = False

    def fsync(self) -> None:
        """Make the content durable; after a failed fsync, write it once more before.

        Raises:
            OSError: it may not be durable.
        """
        state = self.state
        checksums = self.checksums
        self.mark()
        try:
            if state.rest is not None and state.next is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(self.path, state.rest)
                state.rest = None
            if state.is_suspect:
                _rewrite(self.path, state.synced_end, self.size_bytes)
                if checksums is not None:
                    _rewrite_if_there(checksums.path, checksums.synced_size, self.checksums_size)
            elif self.fd >= 0 and self.checksums_fd >= 0:
                fsync_both(self.fd, self.checksums_fd)
            elif self.fd >= 0 and checksums is None:
                os.fsync(self.fd)
            else:
                _rewrite(self.path, 0, 0)
                if checksums is not None:
                    _rewrite_if_there(checksums.path, 0, 0)
        except OSError:
            state.is_suspect = True
            raise
        state.is_suspect = False
        state.synced_end = self.size_bytes
        if checksums is not None:
            checksums.synced_size = self.checksums_size
            self.are_checksums_durable = True

    def mark(self) -> None:
        """Give a segment and its checksum file the same mark, once: metadata leads to it soon.

        Not earlier: go-diskqueue begins with a segment that its metadata does not lead to, and
        writes over the records that a kill has left there.
        """
        if self.checksums is not None and not self.state.is_marked:
            self.state.is_marked = True
            mark(self.path, self.checksums.path)

    def close(self) -> None:
        """Close the descriptors."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.checksums_fd >= 0:
            os.close(self.checksums_fd)
            self.checksums_fd = -1


class Writer:
    """Appends to the newest segment. An operation that raises leaves everything as it was."""

    def __init__(
        self,
        directory: str,
        name: str,
        segment: SegmentState,
        max_bytes_per_file: int,
        logger: logging.Logger,
        *,
        has_checksums: bool = False,
    ) -> None:
        """Args: has_checksums: write checksums of the records beside them."""
        self.segment = segment
        # Segments with appended bytes that no fsync covers yet, oldest first.
        self.dirty: list[SegmentState] = []
        # Files were created since the directory was last made durable.
        self.has_new_files = False
        self._directory = directory
        self._name = name
        self._max_bytes_per_file = max_bytes_per_file
        self._logger = logger
        self._has_checksums = has_checksums
        self._fd = -1
        # Offsets where this process began an append: from these a reader can go on after damage.
        self._known_starts = [segment.end]
        self._start_gap_bytes = _START_GAP_BYTES
        self._crossing: _Crossing | None = None
        # An append that was prepared and has not ended; None while others may be made.
        self.job: AppendJob | None = None

    def append(self, data: bytes, lengths: Sequence[int]) -> None:
        """Append whole records, with one write unless they need more than one segment.

        Raises:
            OSError: nothing was appended.
        """
        segment = self.segment
        position = segment.end
        if position + len(data) > self._max_bytes_per_file:
            job = self.prepare_append([RecordChunk(data, lengths)])
            try:
                job.run()
            finally:
                job.end()
            return
        if self._fd < 0:
            self._fd = self._open(segment)
        try:
            layout.write_all(self._fd, data, position)
            if segment.checksums is not None:
                segment.checksums.append(position, data, lengths)
        except OSError:
            _cut_off(self._fd, segment)
            self._close_rests()
            raise
        segment.end = position + len(data)
        if not segment.is_dirty:
            segment.is_dirty = True
            self.dirty.append(segment)
        if position - self._known_starts[-1] >= self._start_gap_bytes:
            self._add_known_start(position)

    def append_buffers(
        self,
        buffers: Sequence[bytes | memoryview],
        lengths: Sequence[Sequence[int]],
        write: WriteBuffers = write_buffers,
    ) -> None:
        """Append whole records to the current segment, however large it gets.

        The caller decides when another segment begins, with `start_new_segment`.

        Args:
            lengths: the sizes of the records in each buffer, their prefixes included.
            write: writes the buffers into the file.

        Raises:
            OSError: nothing was appended.
        """
        segment = self.segment
        if self._fd < 0:
            self._fd = self._open(segment)
        try:
            write(self._fd, buffers, segment.end)
            if segment.checksums is not None:
                write_checksums(segment.checksums, segment.end, buffers, lengths)
        except OSError:
            _cut_off(self._fd, segment)
            self._close_rests()
            raise
        segment.end += sum(map(len, buffers))
        self._mark_dirty(segment)

    def prepare_append(
        self,
        chunks: Sequence[RecordChunk],
        on_end: Callable[[AppendJob], bool] | None = None,
    ) -> AppendJob:
        """Plan an append of whole records, which any thread may write.

        Until `end_append` there may be no other append.

        Args:
            on_end: ends the job instead of `end_append`, and calls that.

        Raises:
            OSError: the process has no descriptors left.
        """
        assert self.job is None, "one append at a time"
        placements = place(
            *(chunks, self.segment, self._max_bytes_per_file),
            *(self.path_of, self._ensure_checksums),
        )
        first = placements[0]
        if first.checksums is not None:
            first.checksums = first.checksums.fork()
        if self._fd >= 0:
            try:
                first.fd = os.dup(self._fd)
            except OSError:
                first.close_all()
                raise
        count = sum(len(chunk.lengths) for chunk in chunks)
        self.job = AppendJob(placements, count, on_end or self.end_append, self._logger)
        return self.job

    def end_append(self, job: AppendJob) -> bool:
        """Move the write position over the records of a job, if it has written them.

        Returns False if it has failed, or was undone or cancelled.
        """
        if job is self.job:
            self.job = None
        first, *others = job.placements
        segment = first.segment
        if job.is_cancelled and job.state is JobState.WRITTEN:
            job.undo()
        if job.state is not JobState.WRITTEN:
            if segment is self.segment:
                self._close_rests(first.checksums)
            return False
        if others:
            self._crossing = _Crossing(
                segment=segment,
                end=segment.end,
                known_starts=self._known_starts,
                start_gap_bytes=self._start_gap_bytes,
                created=[placement.segment for placement in others],
                created_end=job.placements[-1].size_bytes,
            )
        for placement in job.placements:
            if placement is not first:
                self._succeed(placement.segment)
            if placement.size_bytes:
                self._take_over(placement)
            placement.close()
        if first.checksums is not None:
            first.checksums.close()
        return True

    def _take_over(self, placement: Placement) -> None:
        """Count bytes that a job has written to the current segment."""
        segment = placement.segment
        if self._fd < 0:
            self._fd, placement.fd = placement.fd, -1
        if placement.checksums is not None and placement.checksums is not segment.checksums:
            assert segment.checksums is not None
            placement.checksums.join(segment.checksums)
        if placement.is_new:
            segment.exists = True
            self.has_new_files = True
        if placement.offset - self._known_starts[-1] >= self._start_gap_bytes:
            self._add_known_start(placement.offset)
        segment.end = placement.offset + placement.size_bytes
        self._mark_dirty(segment)

    def _close_rests(self, copy: ChecksumFile | None = None) -> None:
        """Have the current segment opened again by the next append if that must cut off a rest.

        Args:
            copy: of the checksums of the segment, if a job has failed to write to them.
        """
        segment = self.segment
        checksums = segment.checksums
        if checksums is not None and copy is not None and copy.has_rest:
            checksums.has_rest = True
            # Only the job may know it, if the file was not open before.
            checksums.set_end(copy.size_bytes, copy.size_bytes)
        if segment.rest is None and (checksums is None or not checksums.has_rest):
            return
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if checksums is not None:
            checksums.close()

    def undo_append(self, size_bytes: int) -> SegmentState:
        """Take back the last append, with the files it made, so that a crash does not deliver it.

        If a file can neither be cut back nor removed, that is logged and the positions are moved
        all the same. No byte is written behind the rest. Returns the segment that was the current
        one before the append.
        """
        crossing = self._crossing
        if (
            crossing is not None
            and crossing.created[-1] is self.segment
            and crossing.created_end == self.segment.end
        ):
            self._undo_crossing(crossing)
            return crossing.segment
        segment = self.segment
        assert size_bytes <= segment.end, "the last append was not of this size"
        segment.end -= size_bytes
        self._cut_back()
        return segment

    def _undo_crossing(self, crossing: _Crossing) -> None:
        segment = crossing.segment
        is_cut = segment.end == crossing.end
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, segment.fd = segment.fd, -1
        self.segment = segment
        self._known_starts, self._start_gap_bytes = crossing.known_starts, crossing.start_gap_bytes
        self._crossing = None
        segment.next = None
        segment.end = crossing.end
        # From the last one on, so that a crash in between leaves the beginning of the append.
        for created in reversed(crossing.created):
            self.release(created)
            _remove(created, self.path_of(created), self._logger)
        if not is_cut:
            self._cut_back()

    def _cut_back(self) -> None:
        """Make the file of the current segment end where the segment does."""
        segment = self.segment
        if segment.checksums is not None:
            segment.checksums.undo()
        if segment.end == 0:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self.release(segment)
            if segment.checksums is not None:
                # Its file goes with the segment's, and the next append makes a new one.
                segment.checksums.close()
                segment.checksums = None
            if _remove(segment, self.path_of(segment), self._logger):
                segment.exists = False
                return
        else:
            try:
                if self._fd < 0:
                    self._fd = self._open(segment)
                os.ftruncate(self._fd, segment.end)
            except OSError:
                segment.rest = segment.end
            else:
                self._close_rests()
                return
        # A shorter append here would leave the rest of the old one behind it, not at a boundary.
        self._succeed(self._make_successor())

    def start_new_segment(self) -> None:
        """Make later appends go into a new segment, unless the current one is empty."""
        if self.segment.end > 0:
            self._succeed(self._make_successor())

    def discard(self) -> None:
        """Forget the current segment, whose file the caller removes, and all dirty ones."""
        given_up = self.segment
        if self.segment.exists or self.job is not None:
            self.segment = self._make_successor()
        self.close()
        if given_up.checksums is not None:
            given_up.checksums.close()
        self._known_starts = [0]
        self._start_gap_bytes = _START_GAP_BYTES

    def rescue_behind(self, position: int, limits: RecordLimits) -> int:
        """Give up the current segment, which is damaged at `position`.

        Records that this process appended behind the damage are copied into the next segment, as
        far as they are whole. Returns how many bytes that was.

        Raises:
            OSError: the current segment stays the current one.
        """
        path = self.path_of(self.segment)
        starts = [*self._known_starts, self.segment.end]
        start = _find_good_start(path, starts, position, limits)
        successor = self._make_successor()
        if start == self.segment.end:
            self._succeed(successor)
            return 0
        fd = self._open(successor)
        try:
            successor.end = _copy(path, start, self.segment.end, fd)
        except OSError:
            os.close(fd)
            self.release(successor)
            layout.remove_segment(
                self.path_of(successor), has_checksums=successor.has_checksum_file
            )
            raise
        self._succeed(successor)
        self._fd = fd
        self._mark_dirty(successor)
        return successor.end

    def note_doubts(self, segment: SegmentState | None) -> None:
        """Have recovered bytes synced before metadata counts them, and their doubt remembered.

        If it cannot be, another crash before they are read may make a torn write look whole.

        Args:
            segment: the first one that is read.
        """
        while segment is not None and self._has_checksums:
            if segment.doubt[0] < segment.doubt[1]:
                checksums = ChecksumFile(self.path_of(segment), self._name, segment.number)
                try:
                    checksums.open(is_new=False)
                    checksums.append_doubt(*segment.doubt)
                except OSError as error:
                    self._logger.warning(
                        "diskqueue doubt not noted file=%s error=%s", checksums.path, error
                    )
                else:
                    segment.checksums = checksums
                    segment.has_checksum_file = True
                    self.has_new_files = True
                    self._mark_dirty(segment)
                finally:
                    checksums.close()
            segment = segment.next

    def release(self, segment: SegmentState) -> None:
        """Forget that a segment needs an fsync."""
        if segment.is_dirty:
            segment.is_dirty = False
            self.dirty.remove(segment)
        if segment.fd >= 0:
            os.close(segment.fd)
            segment.fd = -1
        if segment.checksums is not None and segment is not self.segment:
            segment.checksums.close()

    def fsync_targets(self, *, with_checksums: bool = True) -> list[FsyncTarget]:
        """List the segments that are not durable, each with descriptors to be closed.

        Args:
            with_checksums: False leaves checksums for a later call that the records do not need to
                be delivered after a power cut; for a sync that does not write metadata.

        Raises:
            OSError: the process has no descriptors left.
        """
        targets: list[FsyncTarget] = []
        try:
            for segment in self.dirty:
                checksums = segment.checksums
                is_needed = with_checksums or segment.is_suspect
                if checksums is not None and not is_needed and not checksums.is_urgent:
                    if segment.synced_end == segment.end:
                        continue
                    checksums = None
                fd = self._fd if segment is self.segment else segment.fd
                fd = os.dup(fd) if fd >= 0 else -1
                target = FsyncTarget(segment, self.path_of(segment), fd, segment.end)
                targets.append(target)
                if checksums is not None:
                    target.checksums = checksums
                    target.checksums_size = checksums.size_bytes
                    if checksums.fd >= 0:
                        target.checksums_fd = os.dup(checksums.fd)
        except OSError:
            for target in targets:
                target.close()
            raise
        return targets

    def note_durable(self, targets: Iterable[FsyncTarget]) -> None:
        """Forget that segments need an fsync, after theirs, unless more was appended since."""
        for target in targets:
            checksums = target.state.checksums
            if target.state.end > target.size_bytes:
                continue
            if target.are_checksums_durable and checksums is not None:
                checksums.is_urgent = False
            if checksums is None or target.are_checksums_durable:
                self.release(target.state)

    def close(self) -> None:
        """Close all descriptors; a job under way is cancelled.

        The rest of a failed append is cut off, or the next start would take it for an append.
        """
        if self.job is not None:
            self.job.cancel()
            self.job = None
        _cut_rest(self.segment, self.path_of(self.segment), self._logger)
        for segment in list(self.dirty):
            self.release(segment)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.segment.checksums is not None:
            self.segment.checksums.close()

    def path_of(self, segment: SegmentState) -> str:
        """Return the path of a segment of this queue."""
        return layout.segment_path(self._directory, self._name, segment.number)

    def _make_successor(self) -> SegmentState:
        """Return a segment for later appends; a job that writes to the current one is cancelled.

        Its number may be one that the job had taken: a number that is left out would look like a
        segment that is lost. If the job's file cannot be removed, `open_segment` sets it aside.
        """
        if self.job is not None:
            self.job.cancel()
            self.job = None
        return SegmentState(self.segment.number + 1)

    def _succeed(self, successor: SegmentState) -> None:
        """Complete the current segment and make the other the current one."""
        segment = self.segment
        segment.next = successor
        if not _cut_rest(segment, self.path_of(segment), self._logger):
            self._mark_dirty(segment)  # the next sync tries again
        if self._fd >= 0:
            if segment.is_dirty and len(self.dirty) <= _MAX_OPEN_FDS:
                segment.fd = self._fd
            else:
                os.close(self._fd)
        if segment.checksums is not None and segment.fd < 0:
            segment.checksums.close()
        self.segment = successor
        self._fd = -1
        self._known_starts = [0]
        self._start_gap_bytes = _START_GAP_BYTES

    def _ensure_checksums(self, segment: SegmentState) -> ChecksumFile | None:
        """Return the checksums of a segment that is about to be written to, None without any."""
        if segment.checksums is None and self._has_checksums:
            path = self.path_of(segment)
            segment.checksums = ChecksumFile(path, self._name, segment.number)
            segment.has_checksum_file = True
        return segment.checksums

    def _open(self, segment: SegmentState) -> int:
        """Open the files of a segment to write to them.

        Raises:
            OSError: they can be neither opened nor made.
        """
        path = self.path_of(segment)
        checksums = self._ensure_checksums(segment)
        fd = open_segment(segment, path, self._logger)
        try:
            if checksums is not None:
                checksums.open(is_new=not segment.exists)
        except OSError:
            os.close(fd)
            if not segment.exists:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise
        if not segment.exists:
            segment.exists = True
            self.has_new_files = True
        return fd

    def _mark_dirty(self, segment: SegmentState) -> None:
        if not segment.is_dirty:
            segment.is_dirty = True
            self.dirty.append(segment)

    def _add_known_start(self, position: int) -> None:
        self._known_starts.append(position)
        if len(self._known_starts) > _MAX_STARTS:
            self._known_starts = self._known_starts[::2]
            self._start_gap_bytes *= 2


def _cut_off(fd: int, segment: SegmentState) -> None:
    """End a file again where its segment ends, behind which a write has failed."""
    try:
        os.ftruncate(fd, segment.end)
    except OSError:
        segment.rest = segment.end


def _cut_rest(segment: SegmentState, path: str, logger: logging.Logger) -> bool:
    """Cut off the rest of a failed append behind a segment; tell whether there is none."""
    if segment.rest is not None:
        try:
            os.truncate(path, segment.rest)
        except FileNotFoundError:
            pass
        except OSError as error:
            _tell_left_behind(logger, path, error)
            return False
        segment.rest = None
    return True


def _remove(segment: SegmentState, path: str, logger: logging.Logger) -> bool:
    """Remove a file whose records must not come back; tell whether it is gone."""
    try:
        os.unlink(path)
    except OSError as error:
        try:
            os.truncate(path, 0)
        except OSError:
            _tell_left_behind(logger, path, error)
        return False
    layout.remove_segment(path, has_checksums=segment.has_checksum_file)
    return True


def _tell_left_behind(logger: logging.Logger, path: str, error: OSError) -> None:
    logger.error(
        "diskqueue append not undone, its records may come after a crash file=%s error=%s",
        path,
        error,
    )


def _find_good_start(path: str, starts: Sequence[int], position: int, limits: RecordLimits) -> int:
    """Return the first known start of a record from which the rest of the segment is whole.

    Args:
        starts: the last one is the end of the segment.
    """
    end = starts[-1]
    for start in starts:
        if start > position:
            result = walk(path, start, end, limits)
            if result.damage is None:
                return start
            position = result.end
    return end


def _rewrite(path: str, start: int, end: int) -> None:
    """Write a part of a file over itself, so that the fsync that follows has something to do."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        while start < end:
            data = os.pread(fd, min(_REWRITE_BYTES, end - start), start)
            if not data:
                raise OSError(errno.EIO, f"{path} ends at {start}, not at {end}")
            layout.write_all(fd, data, start)
            start += len(data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _rewrite_if_there(checksum_path: str, start: int, end: int) -> None:
    """Write a checksum file over itself. Without it the records are durable, and have no checksum.

    An operator may have removed it; a sync that fails for that would fail for ever.
    """
    with contextlib.suppress(FileNotFoundError):
        _rewrite(checksum_path, start, end)


def _copy(path: str, start: int, end: int, target_fd: int) -> int:
    """Copy a part of a file to the beginning of another; return its size."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = start
        while position < end:
            data = os.pread(fd, min(_COPY_BYTES, end - position), position)
            if not data:
                raise OSError(f"{path} ends at {position}, not at {end}")
            layout.write_all(target_fd, data, position - start)
            position += len(data)
    finally:
        os.close(fd)
    return end - start
