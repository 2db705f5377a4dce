"""DiskQueue: a FIFO of opaque records in numbered segment files.

Three positions, each a segment and an offset, never out of this order:

    deleted |  finished   |  read, outstanding  |  unread        | not written
    --------+-------------+---------------------+----------------+------------
            ^ oldest file ^ committed           ^ read           ^ write
                            (the READ of the       (memory only)
                            metadata)

* `append` moves the write position, and only after the bytes are in the file. A record goes into a
  new segment if the current one is not empty and would grow beyond max_bytes_per_file by it.
* `read` and `advance` move the read position and hand out ordinals; `advance` is a read by a caller
  that still has the records in memory.
* `commit` takes ordinals in any order. The committed position is that of the lowest ordinal not
  committed (`progress`), or the read position if there is none.
* A sync makes the appended bytes durable and then persists the committed and the write position,
  with the number of records between them as depth, and which records between them are finished
  (`sidecar`). Only then are segments without an unfinished record deleted (`sync_job`).

So after a crash every record that was appended and not committed is found again; of the committed
ones, at most those that were committed since the last sync. No other bytes are taken for records:
the write position on disk may be behind the file, never ahead of it.

Invariants. Segments are a linked list from the committed one to the one being written, which alone
has no successor and alone is appended to; a completed segment never changes. Numbers may be missing
in between. A position at the end of a completed segment and position 0 of the next are the same
place, and only the latter is persisted, because go-diskqueue takes the former for damage. The
segment being written may have no file yet, at position 0. A file is never written to unless its
size was the write position.

Damage (`segment` defines it) ends its segment at that place, unless records can be recognised
behind it (`salvage`): records before it are delivered, reading goes on with the next segment, and
the file is renamed `.bad` once the records delivered from it are committed. If it is the segment
being written, whole records that this process appended behind the damage are copied into the next
segment first. A failed write leaves no trace: the file is cut back and the positions stay. A failed
fsync ends the segment: the kernel may have dropped pages that it will not report again, so no
record is put behind them.

Checksums (`checksums`, if the owner wants them) stand in a file beside each segment, an entry for
each append, written right behind its records. They say exactly which records are damaged, so that
these are left out and no others, and what go-diskqueue's format cannot tell: a changed body. They
never make a record unreadable: one without a checksum is judged by its shape, as without them,
but for a write that a power cut seems to have torn. `docs/contract/diskqueue.md` weighs the cases.

One thread owns the queue. `SyncJob.run` may work in another one; it locks out `empty`, `close` and
`delete`, which change the same files. `AppendJob.run` may work in a third; these three cancel it.
"""

import logging
import os
from collections.abc import Iterable, Sequence

from diskqueue import layout
from diskqueue.append_job import AppendJob, RecordChunk
from diskqueue.checksums.verifier import ChecksumFailures
from diskqueue.errors import CorruptSegmentError, QueueClosedError, RecordTooLargeError
from diskqueue.finished.progress import Progress
from diskqueue.reader import Reader, ReadRecords
from diskqueue.recovery import recover
from diskqueue.segment import (
    DEFAULT_MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    PREFIX,
    PREFIX_BYTES,
    RecordLimits,
)
from diskqueue.sync_job import Durability, SyncJob
from diskqueue.views.view import QueueView
from diskqueue.writer import Writer

# A queue whose records are all committed gives up a segment of this size at the next sync, and any
# at close, instead of keeping up to max_bytes_per_file of finished records.
_MIN_FREED_BYTES = 4096
_FREED_SHARE = 8

_logger = logging.getLogger(__name__)


class DiskQueue:
    """Records in the order they were appended, each at least once, across restarts and crashes."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        max_bytes_per_file: int = 100 * 1024 * 1024,
        min_record_bytes: int = MIN_RECORD_BYTES,
        max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES,
        max_append_bytes: int | None = None,
        holds_messages: bool = False,
        stores_generation: bool = False,
        has_checksums: bool = False,
        checksum_failures: ChecksumFailures | None = None,
        files: layout.QueueFiles | None = None,
        logger: logging.Logger = _logger,
    ) -> None:
        """Open the queue and recover it; create no file, but checksum files after a crash.

        Args:
            max_record_bytes: larger records are suspected of damage when they are read.
            max_append_bytes: larger records are refused by `append`; the same if not given. A
                caller that moves records between queues needs more, since the limit may have been
                lowered after they were written.
            holds_messages: records have the shape of `envelope`: more damage is seen then, and
                where records go on behind it.
            stores_generation: have the first sync name the queue, for readers that keep positions.
            has_checksums: write a checksum for each record, and look at those that are there.
            checksum_failures: counts the records that checksums have denied, of many queues.
            files: the queue's entry in `layout.list_queues`, for a caller that opens many queues.

        Raises:
            OSError: a file of the queue cannot be read, or the directory is missing.
        """
        self.name = name
        self._directory = os.fspath(directory)
        self._limits = RecordLimits(min_record_bytes, max_record_bytes)
        self._max_append_bytes = max_append_bytes or max_record_bytes
        self._freed_bytes = max(_MIN_FREED_BYTES, max_bytes_per_file // _FREED_SHARE)
        self._is_open = True
        # Set by an owner that is short of disk: the next sync gives up even a small segment.
        self.wants_room = False

        self.checksum_failures = checksum_failures or ChecksumFailures()

        found = recover(self._directory, name, self._limits, logger, files)
        self._reader = Reader(
            *(self._directory, name, found.read_segment, found.read_pos, self._limits, logger),
            holds_messages=holds_messages,
            failures=self.checksum_failures if has_checksums else None,
        )
        self._writer = Writer(
            *(self._directory, name, found.write_segment, max_bytes_per_file, logger),
            has_checksums=has_checksums,
        )
        self._writer.note_doubts(found.read_segment)
        self._progress = Progress(name, found, self._reader, self._writer, logger)
        self._outstanding = self._progress.outstanding
        self._durability = Durability(
            *(self._directory, name, found, self._progress, self._writer),
            stores_generation=stores_generation,
        )
        # The name that tells this queue from others of the same name before or after it.
        self.generation = self._durability.generation
        # A look at segments and positions, for readers from outside.
        self.view = QueueView(
            *(self._directory, name, (self._reader, self._writer, self._progress)),
            *(self.generation, self._durability.pins),
        )

    @property
    def depth(self) -> int:
        """Records appended and not read; after a crash an estimate, until the tail is reached."""
        return self._progress.depth

    @property
    def unread_bytes(self) -> int:
        """Bytes of records between the read and the write position."""
        return self._reader.bytes_ahead

    @property
    def outstanding_count(self) -> int:
        """Records from the committed position to the read position."""
        return len(self._outstanding)

    @property
    def disk_bytes(self) -> int:
        """The size of all segments in use."""
        return sum(segment.end for segment in self._progress.segments() if segment.exists)

    @property
    def segment_count(self) -> int:
        """The number of segment files in use."""
        return sum(segment.exists for segment in self._progress.segments())

    @property
    def write_number(self) -> int:
        """The number of the segment being written."""
        return self._writer.segment.number

    @property
    def unsynced_count(self) -> int:
        """Records appended or committed since the last sync that succeeded."""
        return self._durability.unsynced_count

    def put(self, records: Iterable[bytes]) -> None:
        """Append payloads.

        Raises:
            RecordTooLargeError, OSError, QueueClosedError: as `append`.
        """
        parts: list[bytes] = []
        lengths: list[int] = []
        for record in records:
            parts += (PREFIX.pack(len(record)), record)
            lengths.append(PREFIX_BYTES + len(record))
        self.append(b"".join(parts), lengths)

    def append(self, data: bytes, lengths: Sequence[int]) -> None:
        """Append records that already have their length prefixes: all of them or none.

        Args:
            data: the records back to back.
            lengths: the size of each inside data, its prefix included.

        Raises:
            RecordTooLargeError: a record is outside the limits.
            OSError: the write failed and nothing was appended. If the file could not even be cut
                back, records of this call may be delivered after a crash.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        if not lengths:
            return
        shortest = longest = lengths[0]
        if lengths.count(shortest) < len(lengths):
            shortest, longest = min(lengths), max(lengths)
        if (
            shortest < self._limits.min_record_bytes + PREFIX_BYTES
            or longest > self._max_append_bytes + PREFIX_BYTES
        ):
            _reject(lengths, self._limits.min_record_bytes, self._max_append_bytes)
        assert sum(lengths) == len(data), "the lengths do not add up to the data"
        self._writer.append(data, lengths)
        self._progress.unread_count += len(lengths)
        self._durability.append_count += len(lengths)

    def prepare_append(self, chunks: Sequence[RecordChunk]) -> AppendJob:
        """Make the job of an append that any thread may write.

        Until its `end` reads, commits and syncs go on, but no other append may be made.

        Raises:
            RecordTooLargeError: a record is outside the limits.
            OSError: the process has no descriptors left.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        for chunk in chunks:
            if (
                chunk.shortest < self._limits.min_record_bytes + PREFIX_BYTES
                or chunk.longest > self._max_append_bytes + PREFIX_BYTES
            ):
                _reject(chunk.lengths, self._limits.min_record_bytes, self._max_append_bytes)
        writer, progress, durability = self._writer, self._progress, self._durability

        def end(job: AppendJob) -> bool:
            if not writer.end_append(job):
                return False
            progress.unread_count += job.record_count
            durability.append_count += job.record_count
            return True

        return writer.prepare_append(chunks, end)

    def undo_append(self, lengths: Sequence[int]) -> None:
        """Take back the last append, and the `advance` over exactly its records if there was one.

        Between the two calls no record may be read, and no sync prepared. The ordinals are handed
        out again. If the file cannot be cut back, that is logged, and the records may be delivered
        after a crash.

        Args:
            lengths: as given to `append`.

        Raises:
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        if not lengths:
            return
        self._durability.undo_append(len(lengths))
        reader = self._reader
        reader.forget_checksums()
        segment = self._writer.undo_append(sum(lengths))
        if (reader.segment.number, reader.position) > (segment.number, segment.end):
            self._outstanding.remove_last(len(lengths))
            reader.go_to_end(segment)
        else:
            self._progress.unread_count -= len(lengths)

    def read(self, max_records: int, max_bytes: int) -> ReadRecords | None:
        """Return the next unread records, or None if there are none.

        At least one record, even if it is larger than max_bytes. Damage is dealt with, logged and
        skipped.

        Raises:
            OSError: the disk cannot be read; no record was skipped.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        reader = self._reader
        # Ends: every turn that gives no records leaves a part of a segment for good.
        while True:
            segment = reader.segment
            if reader.position >= segment.end:
                if segment.next is None:
                    self._progress.correct_depth_at_tail()
                    return None
                reader.enter(segment.next)
                continue
            try:
                data, starts, ends = reader.read(max_records, max_bytes)
            except CorruptSegmentError as error:
                self._progress.unread_count -= error.record_count
                if reader.skips and error.resume is None:
                    self._progress.deliver_skipped(error)
                else:
                    reader.skip_damage(error, self._writer)
                continue
            except FileNotFoundError:
                reader.skip_missing(self._writer)
                self._progress.forget_finished()
                continue
            origin = reader.buffer_pos - PREFIX_BYTES
            first = self._outstanding.add(
                segment, origin, starts, reader.position, are_lengths=False
            )
            self._progress.unread_count -= len(starts)
            if reader.skips:
                reader.skip_finished()
            if reader.position >= reader.segment.end:
                self._progress.correct_depth_at_tail()
            return ReadRecords(first, data, starts, ends)

    def skip_unreadable(self) -> None:
        """Go on behind blocks that the disk cannot read; for a caller whose `read` keeps failing.

        Stays if no block near can be read either: that may be a disk that comes back.

        Raises:
            OSError: the disk cannot be read.
        """
        if self._reader.skip_unreadable(self._writer):
            self._progress.unread_count += self._progress.forget_finished()

    def peek(self, max_records: int, max_bytes: int, *, is_newest: bool = False) -> list[bytes]:
        """Return the payloads that `read` would give next, which stay unread.

        At most max_bytes with their prefixes, but for a single larger one; none behind damage.

        Args:
            is_newest: those that `read` would give last, the last one first.

        Raises:
            TailUnknownError: where the last records begin is not known.
            OSError: the disk cannot be read.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        return self._reader.peek(max_records, max_bytes, is_newest=is_newest)

    def advance(self, lengths: Sequence[int]) -> int:
        """Count the next unread records as read, for a caller that has them in memory.

        Args:
            lengths: the sizes of the records as given to `append`.

        Returns the ordinal of the first.

        Raises:
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        reader = self._reader
        first = self._outstanding.next_ordinal
        end = reader.position + sum(lengths)
        if end > reader.segment.end or reader.skips:
            self._progress.advance_across_segments(lengths)
        elif lengths:
            self._outstanding.add(reader.segment, reader.position, lengths, end, are_lengths=True)
            reader.position = end
        self._progress.unread_count -= len(lengths)
        if reader.position >= reader.segment.end:
            self._progress.correct_depth_at_tail()
        return first

    def commit(self, ordinals: Iterable[int]) -> None:
        """Declare records finished for good, in any order; ignore those that `empty` has dropped.

        Raises:
            IndexError: an ordinal that was never handed out.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        self._durability.commit_count += self._outstanding.commit(ordinals)

    def prepare_sync(self, *, with_metadata: bool = True, is_last: bool = False) -> SyncJob | None:
        """Make the job of a sync, or return None if there is no need or one is under way.

        Args:
            is_last: `close` follows; one that is under way is waited for.
            with_metadata: False only makes the appended records durable, for a third of the
                fsyncs; after a crash they are found behind the write position.

        Raises:
            OSError: the process has no descriptors left.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        if is_last:
            return self._durability.prepare_last()
        if self._durability.is_sync_under_way:
            return None
        is_worth_freeing = self._writer.segment.end >= self._freed_bytes or self.wants_room
        if with_metadata and is_worth_freeing and self._writer.job is None:
            self.wants_room = False
            self._progress.complete_consumed_segment()
        return self._durability.prepare(with_metadata=with_metadata)

    def complete_sync(self, job: SyncJob, error: OSError | None = None) -> None:
        """Take back a job after its `run` has ended, with the error if it raised one.

        After an error the records that the job covered are still unsynced.
        """
        self._durability.complete(job, error)

    def sync(self) -> None:
        """Make appends and commits durable, and delete segments without an unfinished record.

        Raises:
            OSError: it may not be durable.
            QueueClosedError: the queue is closed.
        """
        job = self.prepare_sync()
        if job is None:
            return
        try:
            job.run()
        except OSError as error:
            self.complete_sync(job, error)
            raise
        self.complete_sync(job)

    def forget_all(self) -> None:
        """Drop all records, read and unread, without a look at the disk.

        The next sync makes that durable and then removes their files, as it does with files whose
        records are all finished. A start before that finds the records.

        Raises:
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        self._durability.forget_all()

    def empty(self) -> None:
        """Drop all records, read and unread, with their files and the metadata; block.

        Segments found damaged are renamed, not removed. The numbering goes on, so that a file that
        could not be removed is not taken for a new one.

        Raises:
            OSError: a file could not be removed. The queue is empty all the same; a later sync or
                `delete` tries again, and a start before that finds the records.
            QueueClosedError: the queue is closed.
        """
        if not self._is_open:
            raise QueueClosedError
        self._durability.remove_files()
        layout.fsync_directory(self._directory)

    def close(self, *, is_durable: bool = False) -> None:
        """Make all records durable, leave exact metadata, and close the files.

        Outstanding records are unfinished: the next start delivers them again.

        Args:
            is_durable: the caller has done the last job of `prepare_sync`, or failed to.

        Raises:
            OSError: the last sync failed; the queue is closed nevertheless.
        """
        if not self._is_open:
            return
        try:
            job = None if is_durable else self.prepare_sync(is_last=True)
            if job is not None:
                job.run()
        finally:
            self._close_files()

    def delete(self) -> bool:
        """Drop records and files, and close the queue; the caller syncs the directory.

        Blocks, and briefly if `forget_all` and a sync have come before. Returns whether there was a
        file.

        Raises:
            OSError: a file could not be removed. The queue is empty and open.
        """
        if not self._is_open:
            return False
        was_there = self._durability.remove_files()
        self._close_files()
        return was_there

    def _close_files(self) -> None:
        self._is_open = False
        self._reader.close()
        self._writer.close()


def _reject(lengths: Sequence[int], min_record_bytes: int, max_record_bytes: int) -> None:
    for length in lengths:
        size = length - PREFIX_BYTES
        if not min_record_bytes <= size <= max_record_bytes:
            raise RecordTooLargeError(size, min_record_bytes, max_record_bytes)
