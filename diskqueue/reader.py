"""The reading end of a queue: a position, and the part of its segment that was read last.

`DiskQueue` owns the one `Reader` of a queue and decides where it goes. The bytes between the
position and the segment's end never change, so the buffer stays valid. Records that were finished
before the queue was opened are stepped over as soon as the position reaches them, and the buffer
never reaches into them.

With checksums each buffer is judged when it is read (`checksums`), and a record that its checksum
denies is damage, of which the checksums also tell where it ends. A record without one is delivered,
unless it is in doubt (`recovery`) and seems to lack a sector, as a power cut leaves a write that it
has torn. If that is a mistake, the bytes of the message are kept in the `.bad` file.

At damage the reader goes on behind it, and every byte of a damaged segment is kept: the file is
never deleted, but renamed `.bad` when its records are finished, or has that name as a second one
from the moment when reading goes on behind the damage.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Iterator
from functools import partial

from diskqueue import layout, salvage
from diskqueue.checksums.tail import read_tails
from diskqueue.checksums.verifier import ChecksumFailures, Place, Verdict, Verifier
from diskqueue.errors import CorruptSegmentError, TailUnknownError
from diskqueue.finished.intervals import Interval
from diskqueue.segment import (
    PREFIX_BYTES,
    RecordLimits,
    SegmentState,
    find_damage,
    read_record,
    split_records,
)
from diskqueue.writer import Writer

_READ_AHEAD_BYTES = 256 * 1024
_BLOCK_BYTES = 4096
_NO_VERDICT = Verdict(b"", 0)
# Each may take the disk seconds.
_MAX_BAD_BLOCKS = 64
# How much is read to find the newest records where no checksum tells where they are.
MAX_SCAN_BYTES = 256 * 1024


class ReadRecords:
    """Records of one read; payload i is data[starts[i]:ends[i]], its ordinal first + i."""

    __slots__ = ("data", "ends", "first", "starts")

    def __init__(self, first: int, data: bytes, starts: list[int], ends: list[int]) -> None:
        self.first = first
        self.data = data
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[start:end] for start, end in zip(self.starts, self.ends, strict=True))


class Reader:
    """Cuts the segment it stands in into records."""

    __slots__ = (
        "_buffer",
        "_clear_bytes",
        "_directory",
        "_fd",
        "_holds_messages",
        "_limits",
        "_logger",
        "_name",
        "_verdict",
        "_verifier",
        "buffer_pos",
        "position",
        "segment",
        "skips",
    )

    def __init__(
        self,
        directory: str,
        name: str,
        segment: SegmentState,
        position: int,
        limits: RecordLimits,
        logger: logging.Logger,
        *,
        holds_messages: bool = False,
        failures: ChecksumFailures | None = None,
    ) -> None:
        """Args: failures: counts the records that checksums deny; None looks at no checksums."""
        self.segment = segment
        self.position = position
        # Where in the file the buffer begins that `read` has cut up last.
        self.buffer_pos = 0
        self._directory = directory
        self._name = name
        self._limits = limits
        self._logger = logger
        self._holds_messages = holds_messages
        self._fd = -1
        self._buffer = b""
        # How much of the buffer can be delivered, and what else was found out about it.
        self._clear_bytes = 0
        self._verdict = _NO_VERDICT
        self._verifier: Verifier | None = None
        if failures is not None:
            self._verifier = Verifier(name, failures, limits.max_record_bytes, logger)
        # Finished records of this segment from the position on.
        self.skips: deque[Interval] = deque()
        if segment.finished:
            self.skips.extend(segment.finished.since(position))
            self.skip_finished()

    @property
    def path(self) -> str:
        """The path of the segment."""
        return layout.segment_path(self._directory, self._name, self.segment.number)

    @property
    def limit(self) -> int:
        """Where the unfinished records at the position end: the segment's end, or a skip."""
        return self.skips[0].start if self.skips else self.segment.end

    @property
    def bytes_ahead(self) -> int:
        """How many bytes are left to read, in this segment and behind it."""
        ahead = max(self.segment.end - self.position, 0)
        ahead -= sum(entry.end - entry.start for entry in self.skips)
        segment = self.segment.next
        while segment is not None:
            ahead += segment.end - segment.finished.width
            segment = segment.next
        return ahead

    def is_at_tail(self) -> bool:
        """Tell whether all records were read, in this segment and behind it."""
        self.skip_finished()
        segment: SegmentState | None = self.segment
        position = self.position
        while segment is not None:
            if position < segment.end:
                return False
            segment = segment.next
            position = 0
        return True

    def read(self, max_records: int, max_bytes: int) -> tuple[bytes, list[int], list[int]]:
        """Return a buffer, and where in it the payloads of the next records start and end.

        At least one record, and if there are more, at most max_bytes with their prefixes. The
        position moves behind them. It must be before the segment's end.

        Raises:
            CorruptSegmentError: there is no record here.
            FileNotFoundError: the segment has no file.
            OSError: the file cannot be read.
        """
        buffer = self._buffer
        offset = self.position - self.buffer_pos
        stop = min(offset + max_bytes, self._clear_bytes)
        starts, ends = split_records(buffer, offset, stop, max_records, self._limits)
        if not starts:
            buffer = self._fill(max_bytes)
            stop = min(max_bytes, self._clear_bytes)
            starts, ends = split_records(buffer, 0, stop, max_records, self._limits)
            if not starts:
                buffer = self._read_one()
                starts, ends = [PREFIX_BYTES], [len(buffer)]
        if self._holds_messages and not self._verdict.is_covered:
            starts, ends = self._drop_doubtful(buffer, starts, ends)
        if self._verdict.torn < self.buffer_pos + ends[-1]:
            starts, ends = self._drop_torn(buffer, starts, ends)
        self.position = self.buffer_pos + ends[-1]
        if ends[-1] == len(buffer):
            # Thousands of queues that are read to their end must not keep a buffer each.
            self._drop_buffer()
        return buffer, starts, ends

    def peek(self, max_records: int, max_bytes: int, *, is_newest: bool = False) -> list[bytes]:
        """Return the next payloads, of this segment and those behind it, without moving.

        At most max_bytes with their prefixes, but for a single larger one; none behind damage.

        Args:
            is_newest: the last payloads, the last one first, as far as checksums tell where they
                are; without checksums, if little is unread.

        Raises:
            TailUnknownError: where the last ones are is not known.
            OSError: a file cannot be read.
        """
        if is_newest:
            found = read_tails(
                *(self._directory, self._name, self.segment, self.position),
                max_records=max_records,
                max_bytes=max_bytes,
            )
            if found is None and self.bytes_ahead > MAX_SCAN_BYTES:
                raise TailUnknownError
            if found is None:
                found = self.peek(MAX_SCAN_BYTES, MAX_SCAN_BYTES)[-max_records:][::-1]
            return found
        scout = Reader(
            *(self._directory, self._name, self.segment, self.position, self._limits),
            self._logger,
            holds_messages=self._holds_messages,
            failures=None if self._verifier is None else ChecksumFailures(),
        )
        payloads: list[bytes] = []
        try:
            while len(payloads) < max_records and max_bytes > 0:
                scout.skip_finished()
                if scout.position >= scout.segment.end:
                    if scout.segment.next is None:
                        break
                    scout.enter(scout.segment.next)
                    continue
                # Bit by bit: checksums of megabytes take longer than a look may.
                size = min(max_bytes, _READ_AHEAD_BYTES)
                data, starts, ends = scout.read(max_records - len(payloads), size)
                payloads += [data[start:end] for start, end in zip(starts, ends, strict=True)]
                max_bytes -= ends[-1] - starts[0] + PREFIX_BYTES
        except (CorruptSegmentError, FileNotFoundError):
            pass  # the queue's own reader comes here too, and deals with it
        finally:
            scout.close()
        return payloads

    def enter(self, segment: SegmentState) -> None:
        """Go to the beginning of another segment."""
        self.close()
        self.segment = segment
        self.position = 0
        if segment.finished or self.skips:
            self.skips = deque(segment.finished)
            self.skip_finished()

    def go_to_end(self, segment: SegmentState) -> None:
        """Go to where a segment ends now."""
        if segment is not self.segment:
            self.close()
            self.segment = segment
        self._drop_buffer()
        self.position = segment.end
        self.skips.clear()

    def forget_checksums(self) -> None:
        """Read the checksum file again when it is needed: its end was cut off."""
        if self._verifier is not None:
            self._verifier.forget()

    def skip_finished(self) -> None:
        """Step over finished records, into the next segments if they begin with some."""
        while True:
            if self.skips and self.skips[0].start == self.position:
                self.position = self.skips.popleft().end
                continue
            if self.position < self.segment.end:
                return
            segment = self.segment.next
            while segment is not None and segment.end == 0:
                segment = segment.next
            if segment is None or not segment.finished or segment.finished.start > 0:
                return
            self.close()
            self.segment = segment
            self.position = 0
            self.skips = deque(segment.finished)

    def skip_damage(self, error: CorruptSegmentError, writer: Writer) -> None:
        """Go on behind damage in the segment, or end the segment there.

        Raises:
            OSError: the segment cannot be read, or not be copied; no byte was skipped.
        """
        segment = self.segment
        resume = self._find_resume(error.offset) if error.resume is None else error.resume
        rescued_bytes = 0
        end = segment.end
        if resume is not None:
            self._resume_at(resume, error, writer)
        else:
            if segment is writer.segment:
                rescued_bytes = writer.rescue_behind(error.offset, self._limits)
            segment.end = error.offset
            if not layout.has_quarantine_name(error.path):
                segment.damage = error.reason
            resume = end
        self._logger.warning(
            "diskqueue segment damaged file=%s offset=%d reason=%r skipped_bytes=%d"
            " rescued_bytes=%d salvage=python -m diskqueue salvage %s.bad",
            *(error.path, error.offset, error.reason, resume - error.offset, rescued_bytes),
            error.path,
        )

    def skip_unreadable(self, writer: Writer) -> bool:
        """Go on behind blocks that the disk cannot read, if it can read some behind them.

        Returns False otherwise: then the whole disk may be away, and no byte may be skipped.

        Raises:
            OSError: the segment cannot be read.
        """
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        readable = _find_readable(self._fd, self.position, self.segment.end)
        if readable is None:
            return False
        error = CorruptSegmentError(self.path, self.position, "unreadable blocks", is_torn=False)
        resume = self._find_resume(readable - 1)
        if resume is None:
            resume = self.segment.end
        self._resume_at(resume, error, writer)
        self._logger.error(
            "diskqueue segment unreadable, records go on behind file=%s offset=%d skipped_bytes=%d"
            " kept=%s.bad",
            *(error.path, error.offset, resume - error.offset, error.path),
        )
        return True

    def skip_missing(self, writer: Writer) -> None:
        """End the segment at the position, because its file is gone.

        Raises:
            OSError: the whole directory is gone, as with a volume that is not mounted: no segment
                was skipped.
        """
        os.stat(self._directory)
        segment = self.segment
        self._logger.warning("diskqueue segment missing, skipped file=%s", self.path)
        if segment is writer.segment:
            writer.start_new_segment()
        segment.end = self.position
        segment.exists = False

    def _resume_at(self, resume: int, error: CorruptSegmentError, writer: Writer) -> None:
        segment = self.segment
        if segment is writer.segment:
            writer.start_new_segment()
        # At once: when the read position has passed the damage, a restart sees no damage in the
        # segment, and deletes it.
        if not layout.link_quarantined(error.path):
            segment.damage = error.reason
        self._drop_buffer()
        self.position = resume
        self.skip_finished()

    def _find_resume(self, position: int) -> int | None:
        """Return where records go on behind damage in this segment, which is open, or None.

        Raises:
            OSError: the file cannot be read.
        """
        covered: int | None = None
        if self._verifier is not None:
            covered = self._verifier.find_next_covered(self._place, position)
        if not self._holds_messages:
            return covered
        found = salvage.find_resume(
            self._fd, position, self.segment.end, self._limits.max_record_bytes
        )
        return min((place for place in (covered, found) if place is not None), default=None)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.forget_checksums()
        self._drop_buffer()
        self.buffer_pos = 0

    def _drop_buffer(self) -> None:
        self._buffer = b""
        self._clear_bytes = 0
        self._verdict = _NO_VERDICT

    def _fill(self, max_bytes: int) -> bytes:
        """Read and judge the bytes at the position.

        Raises:
            CorruptSegmentError: the checksums deny the record there.
            OSError: the file cannot be read.
        """
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        size = min(max(max_bytes, _READ_AHEAD_BYTES), self.limit - self.position)
        failure: OSError | None = None
        try:
            data = os.pread(self._fd, size, self.position)
        except OSError as error:
            # There may be records up to the block that cannot be read.
            block_bytes = _BLOCK_BYTES - self.position % _BLOCK_BYTES
            if error.errno != errno.EIO or size <= block_bytes:
                raise
            failure = error
            data = os.pread(self._fd, block_bytes, self.position)
        try:
            self._judge(data, is_whole=failure is not None or len(data) < size)
        except CorruptSegmentError:
            if failure is not None:
                raise failure from None
            raise
        return self._buffer

    @property
    def _place(self) -> Place:
        return Place(self.segment, self.path, self._fd, self.position, self.limit)

    def _judge(self, data: bytes, *, is_whole: bool) -> None:
        """Make bytes at the position the buffer, as far as checksums do not deny them.

        Raises:
            CorruptSegmentError: they deny the first record.
            OSError: the file cannot be read.
        """
        self.buffer_pos = self.position
        self._drop_buffer()
        if self._verifier is None:
            self._buffer = data
            self._clear_bytes = len(data)
            return
        self._verdict = verdict = self._verifier.judge(data, self._place, is_whole=is_whole)
        self._buffer = verdict.data
        self._clear_bytes = verdict.clear_bytes

    def _drop_torn(
        self, buffer: bytes, starts: list[int], ends: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return the records before the first that a power cut seems to have torn.

        Raises:
            CorruptSegmentError: that is the very first.
        """
        torn = self._verdict.torn - self.buffer_pos
        count = sum(end <= torn for end in ends)
        if not count:
            assert self._verifier is not None, "only it finds torn writes"
            is_followed = not self._holds_messages or self._is_followed(buffer, ends[0])
            resume = self.buffer_pos + ends[0] if is_followed else None
            reason = "no checksum, and zeros where a write was torn"
            self._verifier.deny(self._place, reason, resume)
        return starts[:count], ends[:count]

    def _read_one(self) -> bytes:
        """Return the record at the position if it is one: larger than max_bytes, or the limit.

        Raises:
            CorruptSegmentError: it is none.
        """
        end = min(self.limit, os.fstat(self._fd).st_size, self._verdict.piece_end)
        damage = find_damage(partial(os.pread, self._fd), self.position, end, self._limits)
        if damage is not None:
            raise CorruptSegmentError(
                self.path, self.position, damage.reason, is_torn=damage.is_torn
            )
        data = read_record(self._fd, self.position)
        if len(data) > self._clear_bytes:
            self._judge(data, is_whole=True)
            if self._verifier is not None and self._clear_bytes < len(data):
                self._verifier.deny(self._place, "a record that reaches into others")
        self._buffer = data
        self._clear_bytes = len(data)
        return data

    def _drop_doubtful(
        self, buffer: bytes, starts: list[int], ends: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return the records up to the first that is no message, or has a provably wrong length.

        Raises:
            CorruptSegmentError: that is the very first.
        """
        stranger = salvage.find_stranger(buffer, starts)
        count = len(starts) if stranger is None else stranger
        try:
            if stranger is None and self._is_followed(buffer, ends[-1]):
                return starts, ends
            if count and not salvage.is_length_right(
                self._fd,
                self.buffer_pos + starts[count - 1] - PREFIX_BYTES,
                self.buffer_pos + ends[count - 1],
                self.segment.end,
                self._limits.max_record_bytes,
            ):
                count -= 1
        except OSError:
            pass  # Unreadable bytes behind these records say nothing against the records.
        if not count:
            reason = "a record that is no message, or has the wrong length"
            raise CorruptSegmentError(self.path, self.position, reason, is_torn=False)
        return starts[:count], ends[:count]

    def _is_followed(self, buffer: bytes, end: int) -> bool:
        """Tell whether a record stands behind the last one, or the segment ends there."""
        left = self.segment.end - self.buffer_pos - end
        size = min(left, salvage.START_BYTES)
        data = buffer[end : end + size]
        if len(data) < size:
            data = os.pread(self._fd, size, self.buffer_pos + end)
        return salvage.is_record_start(data, left, self._limits.max_record_bytes)


def _find_readable(fd: int, offset: int, end: int) -> int | None:
    """Return where a block can be read behind some that cannot, or None if nowhere near.

    Raises:
        OSError: another error than that of an unreadable block.
    """
    bad_count = 0
    while offset < end and bad_count < _MAX_BAD_BLOCKS:
        try:
            os.pread(fd, 1, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            bad_count += 1
        else:
            if bad_count:
                return offset
        offset += _BLOCK_BYTES - offset % _BLOCK_BYTES
    return None
