"""The blocking half of a sync: fsync, sidecar, metadata, deletions.

`DiskQueue.prepare_sync` makes a job on the thread that owns the queue, `run` may then work in any
other while the queue goes on, and `DiskQueue.complete_sync` takes the result back. So a job has
copies only: descriptors of its own, the text of the metadata, paths, a snapshot of the marks.

The order of the steps makes a crash between any two of them harmless:

1. fsync the segments, so that the metadata never points beyond durable bytes; bytes that a failed
   fsync was to cover are written once more before, since the next one would not write them;
2. rename damaged segments whose records are all finished; a segment the old metadata points to may
   be missing, while one before the new read position would be deleted at the next start;
3. replace the sidecar of finished records, which is good for the old metadata too;
4. replace the metadata;
5. remove the sidecar if no record is finished behind the new read position;
6. delete the segments that have no unfinished record; before, write down which the newest of them
   is and where it ended (`identity`), for readers that keep positions;
7. write the generation of a queue that has none yet.

On a full disk steps 3 and 4 have no room, and would never get any if they had to come before step
6: then that comes first. A crash in between leaves metadata that points to segments that are
missing, and a start skips these.

`Durability` makes jobs and takes them back, on the thread that owns the queue; `DiskQueue` owns the
one `Durability` of a queue.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from diskqueue import layout
from diskqueue.finished.intervals import Intervals
from diskqueue.finished.progress import Progress, Run, Snapshot
from diskqueue.finished.sidecar import (
    NO_FINGERPRINT,
    Block,
    Fingerprints,
    Position,
    Sidecar,
    encode_body,
)
from diskqueue.identity import Generation
from diskqueue.recovery import Recovered
from diskqueue.segment import SegmentState
from diskqueue.views.pins import Pins
from diskqueue.writer import FsyncTarget, Writer

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class Consumed(NamedTuple):
    """A segment behind the read position without an unfinished record."""

    segment: SegmentState
    record_count: int
    # Of those records that this process has read.
    ordinals: Intervals


class SidecarUpdate(NamedTuple):
    """The next content of the sidecar, and the segments that can be deleted once it is written.

    They are gaps in it already, and their blocks are still there, for the case that a crash comes
    before the deletion.
    """

    previous: Position
    body: bytes
    consumed: list[Consumed]


@dataclass(frozen=True, slots=True)
class FinishedPlan:
    """The records finished behind the read position at the moment of a sync."""

    # The read position of the metadata on disk, and of the metadata to be written.
    previous: Position
    read: Position
    snapshot: Snapshot | None
    kept: tuple[Block, ...]
    gaps: Intervals
    # Completed segments that may have no unfinished record.
    candidates: tuple[SegmentState, ...]

    def work_out(self, directory: str, name: str) -> SidecarUpdate:
        """Work out the content of the sidecar; takes the time of the runs that have changed.

        Raises:
            OSError: the record at the read position cannot be read. Without its fingerprint the
                sidecar is not believed, and segments that it calls deleted would seem to be lost.
        """
        with Fingerprints(directory, name) as fingerprints:
            found = list(self.snapshot.find_blocks(fingerprints)) if self.snapshot else []
            read_crc = fingerprints.find(*self.read)
        consumed = self._find_consumed([(run, block) for run, block, _ in found])
        if fingerprints.error is not None and read_crc is None and (consumed or self.gaps):
            raise fingerprints.error
        numbers = Intervals.of_numbers(entry.segment.number for entry in consumed)
        body = encode_body(
            self.read,
            NO_FINGERPRINT if read_crc is None else read_crc,
            self.gaps.union(numbers),
            [*[block.encode() for block in self.kept], *[encoded for *_, encoded in found]],
        )
        return SidecarUpdate(self.previous, body, consumed)

    def _find_consumed(self, found: list[tuple[Run, Block]]) -> list[Consumed]:
        """Find the candidates of which every byte belongs to a finished record."""
        if not self.candidates:
            return []
        blocks: dict[int, list[Block]] = {segment.number: [] for segment in self.candidates}
        runs: dict[int, list[Run]] = {segment.number: [] for segment in self.candidates}
        for block in [*self.kept, *[block for _, block in found]]:
            if block.number in blocks:
                blocks[block.number].append(block)
        for run, block in found:
            if block.number in runs:
                runs[block.number].append(run)
        return [
            Consumed(
                segment,
                sum(block.records.count for block in blocks[segment.number]),
                _ordinals_of(runs[segment.number]),
            )
            for segment in self.candidates
            if sum(block.records.width for block in blocks[segment.number]) == segment.end
        ]


def plan_finished(
    progress: Progress, read: Position, durable_text: bytes | None
) -> FinishedPlan | None:
    """Plan the content of the sidecar, or return None if there is no need for one.

    Args:
        read: the committed position.
        durable_text: the metadata on disk, if it is known.
    """
    snapshot = progress.outstanding.take_snapshot()
    if snapshot is None and not progress.kept and not progress.gaps:
        return None
    previous = read
    if durable_text is not None:
        metadata = layout.parse_metadata(durable_text)
        previous = min(read, Position(metadata.read_file, metadata.read_pos))
    return FinishedPlan(
        previous=previous,
        read=read,
        snapshot=snapshot,
        kept=tuple(progress.kept),
        gaps=progress.gaps,
        candidates=tuple(progress.find_left_segments()),
    )


def _ordinals_of(runs: list[Run]) -> Intervals:
    """Return the ordinals of runs of one segment, which are consecutive."""
    if not runs:
        return Intervals()
    return Intervals.of_span(runs[0].first, runs[-1].first + runs[-1].count)


@dataclass(slots=True, kw_only=True)
class SyncJob:
    """One sync under way. The queue's owner passes it on, calls `run` once, and gives it back."""

    directory: str
    name: str
    metadata_path: str
    # None makes the appended records durable and leaves the metadata for a later sync.
    metadata: layout.Metadata | None
    # The content of the metadata file, if it is known.
    durable_text: bytes | None
    targets: list[FsyncTarget]
    # The directory has entries that are not durable yet.
    has_new_files: bool
    removals: list[SegmentState]
    removal_paths: list[str] = field(default_factory=list)
    sidecar: Sidecar
    # None if no record is finished behind an unfinished one.
    finished: FinishedPlan | None
    append_count: int
    commit_count: int
    lock: threading.Lock
    generation: Generation
    # It is not stored, and the queue has records.
    stores_generation: bool
    pins: Pins
    is_cancelled: bool = field(default=False, init=False)
    are_segments_durable: bool = field(default=False, init=False)
    # Which of the removals are done, and segments that were deleted before older ones.
    removed: list[SegmentState] = field(default_factory=list, init=False)
    deleted: list[Consumed] = field(default_factory=list, init=False)

    def run(self) -> None:
        """Do the blocking work.

        Raises:
            OSError: at least one step failed; the later ones were not tried.
        """
        with self.lock:
            try:
                if not self.is_cancelled:
                    self._run_steps()
                    self._store_generation()
            finally:
                self.release()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to do but to make records durable and to write metadata."""
        return (
            self.metadata is not None
            and self.finished is None
            and not self.sidecar.exists
            and not self.removals
            and not self.stores_generation
            and not any(target.state.is_suspect for target in self.targets)
        )

    def write_metadata_aside(self) -> str:
        """Write the new metadata beside the old, for a plain job; return the path.

        Raises:
            OSError: there is no such file.
        """
        assert self.metadata is not None
        for target in self.targets:
            target.mark()
        text = layout.format_metadata(self.metadata)
        return layout.write_aside(self.metadata_path, text, is_durable=False)

    def release(self) -> None:
        """Close the descriptors; called at the end of `run`, and by the queue in any case."""
        for target in self.targets:
            target.close()

    def _run_steps(self) -> None:
        for target in self.targets:
            target.fsync()
        self.are_segments_durable = True
        if self.metadata is None:
            if self.has_new_files:
                layout.fsync_directory(self.directory)
            return
        for state, path in zip(self.removals, self.removal_paths, strict=True):
            if state.damage is not None:
                self.pins.keep(path)
                with contextlib.suppress(FileNotFoundError):
                    layout.quarantine(path)
        update = self.finished.work_out(self.directory, self.name) if self.finished else None
        consumed = update.consumed if update else []
        depth = self.metadata.depth - sum(entry.record_count for entry in consumed)
        text = layout.format_metadata(replace(self.metadata, depth=depth))
        try:
            self._write_positions(text, update)
        except OSError as error:
            if error.errno not in _NO_ROOM or not (self.removals or consumed):
                raise
            self._delete_segments(consumed)
            self._write_positions(text, update)
        self.durable_text = text
        has_sidecar_to_remove = self.finished is None and self.sidecar.exists
        if has_sidecar_to_remove:
            self.sidecar.remove()
        self._delete_segments(consumed)
        if has_sidecar_to_remove or self.removals or consumed:
            layout.fsync_directory(self.directory)

    def _store_generation(self) -> None:
        if self.stores_generation:
            # The next sync tries again; a reader who asks for the generation is told the error.
            with contextlib.suppress(OSError):
                self.generation.ensure()

    def _write_positions(self, text: bytes, update: SidecarUpdate | None) -> None:
        if update is not None:
            self.sidecar.write(update.previous, update.body)
        if text != self.durable_text or self.targets or self.removals:
            layout.write_atomically(self.metadata_path, text)

    def _delete_segments(self, consumed: list[Consumed]) -> None:
        """Delete those that were not deleted before."""
        newest = find_newest([*self.removals, *(entry.segment for entry in consumed)])
        if newest is not None:
            # A reader that is not told takes the segment for lost, and says so; a disk that is
            # full must get its room all the same.
            with contextlib.suppress(OSError):
                self.generation.store_deleted(newest.number, newest.end)
        done_count = len(self.removed)
        for state, path in zip(
            self.removals[done_count:], self.removal_paths[done_count:], strict=True
        ):
            if state.damage is None:
                self.pins.keep(path)
                layout.remove_segment(path, has_checksums=state.has_checksum_file)
            self.removed.append(state)
        for entry in consumed[len(self.deleted) :]:
            path = layout.segment_path(self.directory, self.name, entry.segment.number)
            self.pins.keep(path)
            layout.remove_segment(path, has_checksums=entry.segment.has_checksum_file)
            self.deleted.append(entry)


class Durability:
    """How much of a queue is durable: its changes since the last sync, and the sync under way."""

    def __init__(
        self,
        directory: str,
        name: str,
        found: Recovered,
        progress: Progress,
        writer: Writer,
        *,
        stores_generation: bool = False,
    ) -> None:
        # Records appended and committed since the last sync that succeeded.
        self.append_count = 0
        self.commit_count = 0
        self._directory = directory
        self._name = name
        self._progress = progress
        self._writer = writer
        self._sidecar = Sidecar(directory, name, exists=found.has_sidecar)
        self.generation = Generation(directory, name)
        self._stores_generation = stores_generation
        # Readers that hold segments.
        self.pins = Pins()
        # The content of the metadata file, or None while that is unknown.
        self._durable_text = found.durable_text
        self._job: SyncJob | None = None
        # Locked by the `run` of a job, and while files are removed.
        self._lock = threading.Lock()

    @property
    def unsynced_count(self) -> int:
        """Records appended or committed since the last sync that succeeded."""
        return self.append_count + self.commit_count

    @property
    def is_sync_under_way(self) -> bool:
        """Whether a job was made and not taken back."""
        return self._job is not None

    def undo_append(self, record_count: int) -> None:
        """Take back appended records that no job covers."""
        job_count = 0 if self._job is None else self._job.append_count
        self.append_count -= record_count
        assert self.append_count >= job_count, "a sync was prepared after the append"

    def prepare(self, *, with_metadata: bool) -> SyncJob | None:
        """Make a job, or return None if there is no need for one; none may be under way.

        Raises:
            OSError: the process has no descriptors left.
        """
        job = self._make_job(with_metadata=with_metadata)
        if self._is_idle(job):
            self.append_count = 0
            if with_metadata:
                self.commit_count = 0
            return None
        self._job = job
        self._writer.has_new_files = False
        return job

    def complete(self, job: SyncJob, error: OSError | None) -> None:
        """Take back a job whose `run` has ended."""
        job.release()
        if job is not self._job:
            return  # Overtaken by empty, close or delete.
        self._job = None
        self._note_deleted(job)
        if job.are_segments_durable:
            self._writer.note_durable(job.targets)
        if error is None:
            self.append_count -= job.append_count
            if job.metadata is not None:
                self.commit_count -= job.commit_count
                self._durable_text = job.durable_text
            return
        self._writer.has_new_files |= job.has_new_files
        if not job.are_segments_durable:
            self._writer.start_new_segment()

    def prepare_last(self) -> SyncJob | None:
        """Make the job that leaves all records durable and exact metadata, before a close.

        None if the files are as they should be. A queue that was never used gets metadata too.

        Raises:
            OSError: the process has no descriptors left.
        """
        with self._lock:
            self._cancel_job()
        self._progress.complete_consumed_segment()
        job = self._make_job(with_metadata=True)
        # Not at a close: thousands of queues of another nsqd would each need their fsyncs for it.
        job.stores_generation = False
        return None if self._durable_text is not None and self._is_idle(job) else job

    def forget_all(self) -> None:
        """Forget all records; the next sync makes that durable, and removes their files.

        It may be under way: a job has copies only, and its `complete` finds the segments retired.
        """
        segments = [segment for segment in self._progress.segments() if segment.exists]
        self._writer.discard()
        self._progress.clear()
        self._progress.retired = segments
        self._note_retired(segments)
        self.commit_count += 1  # a sync has something to do

    def remove_files(self) -> bool:
        """Forget all records, and remove the files; the caller syncs the directory.

        Returns whether there was a file.

        Raises:
            OSError: a file could not be removed; a later sync tries again.
        """
        with self._lock:
            self._cancel_job()
            segments = list(self._progress.segments())
            self._writer.discard()
            self._progress.clear()
            self.append_count = self.commit_count = 0
            self._durable_text = None
            self._sidecar.forget(is_removed=False)
            self.generation.end()
            try:
                was_there = remove_queue(self._directory, self._name, segments, self.pins)
            except OSError:
                self._progress.retired = [segment for segment in segments if segment.exists]
                raise
            self._sidecar.forget(is_removed=True)
            return was_there

    def _make_job(self, *, with_metadata: bool) -> SyncJob:
        metadata = finished = None
        removals: list[SegmentState] = []
        if with_metadata:
            progress = self._progress
            read = progress.retire_committed()
            depth = progress.count_records(read) + progress.depth
            end = self._writer.segment
            metadata = layout.Metadata(depth, *read, end.number, end.end)
            finished = plan_finished(progress, read, self._durable_text)
            removals = list(progress.retired)
            self._note_retired(removals)
        return SyncJob(
            directory=self._directory,
            name=self._name,
            metadata_path=layout.metadata_path(self._directory, self._name),
            metadata=metadata,
            durable_text=self._durable_text,
            targets=self._writer.fsync_targets(with_checksums=with_metadata),
            has_new_files=self._writer.has_new_files,
            removals=removals,
            removal_paths=[self._writer.path_of(segment) for segment in removals],
            sidecar=self._sidecar,
            finished=finished,
            append_count=self.append_count,
            commit_count=self.commit_count,
            lock=self._lock,
            generation=self.generation,
            stores_generation=self._needs_generation(with_metadata=with_metadata),
            pins=self.pins,
        )

    def _note_retired(self, segments: Sequence[SegmentState]) -> None:
        newest = find_newest(segments)
        if newest is not None:
            self.generation.note_retired(newest.number, newest.end)

    def _needs_generation(self, *, with_metadata: bool) -> bool:
        return self._stores_generation and with_metadata and self.generation.stored is None

    def _is_idle(self, job: SyncJob) -> bool:
        """Tell whether a job would leave all files as they are."""
        if job.targets or job.removals:
            return False
        if job.metadata is None:
            return not job.has_new_files  # a sync before has failed to make their names durable
        if job.finished is not None and self.commit_count:
            return False
        if job.finished is None and self._sidecar.exists:
            return False
        # A sync without metadata may have taken care of the appended records.
        has_files = any(segment.exists for segment in self._progress.segments())
        is_unused = self._durable_text is None and not (self.unsynced_count or has_files)
        return is_unused or layout.format_metadata(job.metadata) == self._durable_text

    def _cancel_job(self) -> None:
        """Keep a job that has not run yet from running; the caller has the lock."""
        if self._job is not None:
            self._job.is_cancelled = True
            self._job.release()
            self._note_deleted(self._job)
            self._job = None

    def _note_deleted(self, job: SyncJob) -> None:
        # In the order of the list, of which the job had the beginning.
        del self._progress.retired[: len(job.removed)]
        for entry in job.deleted:
            self._progress.note_deleted(entry.segment, entry.ordinals)


def find_newest(segments: Iterable[SegmentState]) -> SegmentState | None:
    """Return the newest of segments that are given up, but for damaged ones: these are kept."""
    whole = (segment for segment in segments if segment.damage is None)
    return max(whole, key=attrgetter("number"), default=None)


def remove_queue(directory: str, name: str, segments: Iterable[SegmentState], pins: Pins) -> bool:
    """Remove all files of a queue: segments from the oldest on, then the files that lead to them.

    Segments found damaged are renamed instead. The caller syncs the directory. Returns whether
    there was a file.

    Raises:
        OSError: a file could not be removed; all others were.
    """
    failure: OSError | None = None
    was_there = False
    # The generation first: segments that stay behind must not be taken for those of the same queue.
    paths = [
        (layout.generation_path(directory, name), False),
        (layout.finished_path(directory, name), False),
    ]
    for segment in segments:
        path = layout.segment_path(directory, name, segment.number)
        paths.append((path, segment.damage is not None))
        if segment.damage is None and segment.has_checksum_file:
            paths.append((layout.checksum_path(path), False))
    paths.append((layout.metadata_path(directory, name), False))
    for path, is_damaged in paths:
        pins.keep(path)
        try:
            if is_damaged:
                layout.quarantine(path)
            else:
                os.unlink(path)
            was_there = True
        except FileNotFoundError:
            pass
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return was_there
