"""The reading end of a queue: a position, and the piece of its segment that was read last.

`DiskQueue` owns the one `Reader` of a queue and decides where it goes; what stands between the
position and the segment's end never changes, so the piece in memory stays valid. Records that were
finished before the queue was opened are stepped over as soon as the position reaches them, and no
piece reaches into them.
"""

import errno
import os
from collections import deque
from collections.abc import Iterator
from functools import partial

from diskqueue import layout, resync
from diskqueue.errors import CorruptSegmentError
from diskqueue.intervals import Interval
from diskqueue.recovery import SegmentState
from diskqueue.segment import PREFIX_BYTES, Limits, find_damage, read_record, split_records

_READ_AHEAD_BYTES = 256 * 1024
_BLOCK_BYTES = 4096
# Each may take the disk seconds.
_MAX_BAD_BLOCKS = 64


class Batch:
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
        "_directory",
        "_fd",
        "_holds_messages",
        "_limits",
        "_name",
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
        limits: Limits,
        *,
        holds_messages: bool = False,
    ) -> None:
        self.segment = segment
        self.position = position
        # Where in the file the piece begins that `read` cut up last.
        self.buffer_pos = 0
        self._directory = directory
        self._name = name
        self._limits = limits
        self._holds_messages = holds_messages
        self._fd = -1
        self._buffer = b""
        # Finished records of this segment from the position on.
        self.skips: deque[Interval] = deque()
        self._look_for_skips()

    @property
    def limit(self) -> int:
        """Where the unfinished records at the position end: the segment, or a skip."""
        return self.skips[0].start if self.skips else self.segment.end

    def read(self, max_records: int, max_bytes: int) -> tuple[bytes, list[int], list[int]]:
        """A piece of the segment, and where in it the payloads of the next records start and end.

        At least one record, and if there are more, at most max_bytes with their prefixes. The
        position moves behind them. It must be before the segment's end.

        Raises:
            CorruptSegmentError: there is no record here.
            FileNotFoundError: the segment has no file.
            OSError: the file cannot be read.
        """
        buffer = self._buffer
        offset = self.position - self.buffer_pos
        stop = min(offset + max_bytes, len(buffer))
        starts, ends = split_records(buffer, offset, stop, max_records, self._limits)
        if not starts:
            buffer = self._fill(max_bytes)
            stop = min(max_bytes, len(buffer))
            starts, ends = split_records(buffer, 0, stop, max_records, self._limits)
            if not starts:
                buffer = self._read_one()
                starts, ends = [PREFIX_BYTES], [len(buffer)]
        if self._holds_messages:
            starts, ends = self._drop_doubtful(buffer, starts, ends)
        self.position = self.buffer_pos + ends[-1]
        if ends[-1] == len(buffer):
            # Thousands of queues that are read to their end must not hold a piece each.
            self._buffer = b""
        return buffer, starts, ends

    def peek(self, max_records: int, max_bytes: int) -> list[bytes]:
        """The next payloads, of this segment and those behind it, without moving.

        At most max_bytes with their prefixes, but for a single larger one; none behind damage.

        Raises:
            OSError: a file cannot be read.
        """
        scout = Reader(
            *(self._directory, self._name, self.segment, self.position, self._limits),
            holds_messages=self._holds_messages,
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
                data, starts, ends = scout.read(max_records - len(payloads), max_bytes)
                payloads += [data[start:end] for start, end in zip(starts, ends, strict=True)]
                max_bytes -= ends[-1] - starts[0] + PREFIX_BYTES
        except (CorruptSegmentError, FileNotFoundError):
            pass  # whoever reads for good comes here too, and deals with it
        finally:
            scout.close()
        return payloads

    def find_resume(self, position: int) -> int | None:
        """Where records go on behind damage in this segment, or None if nowhere.

        Raises:
            OSError: the file cannot be read.
        """
        if not self._holds_messages:
            return None
        if self._fd < 0:
            self._fd = self._open()
        return resync.find_resume(
            self._fd, position, self.segment.end, self._limits.max_record_bytes
        )

    def skip_to(self, position: int) -> None:
        """Goes on elsewhere in this segment."""
        self._buffer = b""
        self.position = position

    def enter(self, segment: SegmentState) -> None:
        """Goes to the beginning of another segment."""
        self.close()
        self.segment = segment
        self.position = 0
        self._look_for_skips()

    def go_to_end(self, segment: SegmentState) -> None:
        """Goes to where a segment ends now."""
        if segment is not self.segment:
            self.close()
            self.segment = segment
        self.position = segment.end
        self.skips.clear()

    def is_at_tail(self) -> bool:
        """Whether nothing is left to read, in this segment or behind it."""
        self.skip_finished()
        segment: SegmentState | None = self.segment
        position = self.position
        while segment is not None:
            if position < segment.end:
                return False
            segment = segment.next
            position = 0
        return True

    @property
    def bytes_ahead(self) -> int:
        """What is left to read, in this segment and behind it."""
        ahead = max(self.segment.end - self.position, 0)
        ahead -= sum(entry.end - entry.start for entry in self.skips)
        segment = self.segment.next
        while segment is not None:
            ahead += segment.end - segment.finished.width
            segment = segment.next
        return ahead

    def skip_finished(self) -> None:
        """Moves on over finished records, into the next segments if they begin with some."""
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

    def _look_for_skips(self) -> None:
        if self.segment.finished or self.skips:
            self.skips = deque(self.segment.finished.since(self.position))
            self.skip_finished()

    def close(self) -> None:
        """Closes the file; the next read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._buffer = b""
        self.buffer_pos = 0

    def _fill(self, max_bytes: int) -> bytes:
        if self._fd < 0:
            self._fd = self._open()
        size = min(max(max_bytes, _READ_AHEAD_BYTES), self.limit - self.position)
        try:
            self._buffer = os.pread(self._fd, size, self.position)
        except OSError as error:
            # There may be records up to the block that cannot be read.
            block_bytes = _BLOCK_BYTES - self.position % _BLOCK_BYTES
            if error.errno != errno.EIO or size <= block_bytes:
                raise
            self._buffer = os.pread(self._fd, block_bytes, self.position)
        self.buffer_pos = self.position
        return self._buffer

    def find_readable(self) -> int | None:
        """Where a block can be read again behind some that cannot, or None if nowhere near.

        Raises:
            OSError: something else is wrong.
        """
        if self._fd < 0:
            self._fd = self._open()
        offset = self.position
        bad_count = 0
        while offset < self.segment.end and bad_count < _MAX_BAD_BLOCKS:
            try:
                os.pread(self._fd, 1, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                bad_count += 1
            else:
                if bad_count:
                    return offset
            offset += _BLOCK_BYTES - offset % _BLOCK_BYTES
        return None

    def _read_one(self) -> bytes:
        """The record at the position if it is one: larger than max_bytes, or than the limit."""
        end = min(self.limit, os.fstat(self._fd).st_size)
        damage = find_damage(partial(os.pread, self._fd), self.position, end, self._limits)
        if damage is not None:
            raise CorruptSegmentError(
                self._path(), self.position, damage.reason, is_torn=damage.is_torn
            )
        self._buffer = read_record(self._fd, self.position)
        return self._buffer

    def _drop_doubtful(
        self, buffer: bytes, starts: list[int], ends: list[int]
    ) -> tuple[list[int], list[int]]:
        """The records up to the first that is no message, or whose length is provably wrong."""
        stranger = resync.find_stranger(buffer, starts)
        count = len(starts) if stranger is None else stranger
        try:
            if stranger is None and self._is_followed(buffer, ends[-1]):
                return starts, ends
            if count and not self._is_length_right(starts[count - 1], ends[count - 1]):
                count -= 1
        except OSError:
            pass  # What is behind cannot be read, and tells nothing about what can.
        if not count:
            reason = "a record that is no message, or has the wrong length"
            raise CorruptSegmentError(self._path(), self.position, reason, is_torn=False)
        return starts[:count], ends[:count]

    def _is_length_right(self, start: int, end: int) -> bool:
        return resync.is_length_right(
            self._fd,
            self.buffer_pos + start - PREFIX_BYTES,
            self.buffer_pos + end,
            self.segment.end,
            self._limits.max_record_bytes,
        )

    def _is_followed(self, buffer: bytes, end: int) -> bool:
        """Whether a record, or nothing, stands behind the last one."""
        left = self.segment.end - self.buffer_pos - end
        size = min(left, resync.START_BYTES)
        data = buffer[end : end + size]
        if len(data) < size:
            data = os.pread(self._fd, size, self.buffer_pos + end)
        return resync.is_record_start(data, left, self._limits.max_record_bytes)

    def _open(self) -> int:
        return os.open(self._path(), os.O_RDONLY | os.O_CLOEXEC)

    def _path(self) -> str:
        return layout.segment_path(self._directory, self._name, self.segment.number)
