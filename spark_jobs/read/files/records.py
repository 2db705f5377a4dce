"""Records of a window of a segment: where each begins, and all of them as Arrow columns.

    0         4         12         14                30
    | int32   | int64   | uint16   | 16 bytes        | ...
    | length  | time ns | attempts | id              | body

Only the columns asked for are built. They own their memory: the buffer of the bytes is used again
for the next window of the file.

Records are a chain: a length leads to the next one, so a plain walk takes one step of Python per
record. Here the window is cut into lanes. In each, a place that looks like a record is guessed, and
all lanes walk in lockstep, one numpy operation for a step of all of them:

    proven --> guess 1 --> guess 2 --> guess 3
    r r r r r |r r r r r r |r r r r r |r r r ... stop

A guess proves nothing, since bodies may contain records. The first lane starts at a true record. A
lane is believed when a believed one ends exactly at its start; where the believed chain runs past a
guess, it is walked on in Python until it meets the start of another lane. So the result is that of
the plain walk for any bytes; bad guesses only cost time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskqueue.envelope import HEADER_BYTES, ID_BYTES
from diskqueue.segment import PREFIX, PREFIX_BYTES, RecordLimits, split_records
from spark_jobs.read.columns import Constants

Offsets = npt.NDArray[np.int64]

_MIN_STRIDE = PREFIX_BYTES + HEADER_BYTES
# Below this size, or with fewer records, the plain walk is as fast.
_MIN_WINDOW_BYTES = 256 * 1024
_MIN_RECORDS = 1024
# About so many records walk one after another in a lane; more mean fewer guesses and more steps.
_RECORDS_PER_LANE = 64
# A lane of records much smaller than the sample's is walked on in Python after that many.
_MAX_STEPS = 256
_STEPS_PER_CHECK = 4
_SAMPLE_COUNT = 16
# How many leading bytes of the first timestamp a guess must share: 2 are 3.3 days.
_TIMESTAMP_PREFIX_BYTES = 2


def find_records(data: bytearray, stop: int, limits: RecordLimits) -> tuple[Offsets, int]:
    """Find the starts of the whole records from the beginning of `data`, and the end of the last.

    Stops at the first record that is cut off by `stop` or whose length is outside the limits, as
    `diskqueue.segment.split_records` does.
    """
    if stop >= _MIN_WINDOW_BYTES:
        _, sample = split_records(data, 0, stop, _SAMPLE_COUNT, limits)
        if len(sample) == _SAMPLE_COUNT:
            mean_bytes = sample[-1] // _SAMPLE_COUNT
            if stop // mean_bytes >= _MIN_RECORDS:
                return _Lanes(data, stop, limits, mean_bytes * _RECORDS_PER_LANE).result()
    starts, ends = split_records(data, 0, stop, stop, limits)
    return np.array(starts, np.int64) - PREFIX_BYTES, ends[-1] if ends else 0


class _Lanes:
    """One window: its lanes, how far each got, and which of them are proven."""

    def __init__(self, data: bytearray, stop: int, limits: RecordLimits, lane_bytes: int) -> None:
        self._data = data
        self._stop = stop
        self._limits = limits
        # The first bytes of the timestamps: text in a body does not contain them by chance.
        self._look = bytes(data[PREFIX_BYTES : PREFIX_BYTES + _TIMESTAMP_PREFIX_BYTES])
        self._starts = self._guess_starts(lane_bytes)

    def result(self) -> tuple[Offsets, int]:
        steps = self._walk_all()
        is_record = self._judge(steps)
        counts = np.count_nonzero(is_record, axis=0)
        # Where each lane ended: behind its last whole record.
        ends = steps[counts, np.arange(len(counts))]
        # Lane by lane, so the offsets come out in order.
        if np.array_equal(ends[:-1], self._starts[1:]):
            return steps[:-1].T[is_record.T], int(ends[-1])
        is_proven, extra, end = self._prove(ends)
        offsets = steps[:-1].T[(is_record & is_proven).T]
        offsets = np.concatenate([offsets, np.array(extra, np.int64)])
        offsets.sort()
        return offsets, end

    def _guess_starts(self, lane_bytes: int) -> Offsets:
        """Return the true first record, and a guess behind each boundary between lanes."""
        starts = [0]
        for boundary in range(lane_bytes, self._stop - lane_bytes, lane_bytes):
            guess = self._guess_start(boundary, boundary + lane_bytes)
            if guess > starts[-1]:
                starts.append(guess)
        return np.array(starts, np.int64)

    def _guess_start(self, begin: int, end: int) -> int:
        """Find the first place with the timestamp of a record, followed by another; else -1."""
        data, look = self._data, self._look
        found = data.find(look, begin + PREFIX_BYTES, end)
        while found >= 0:
            (length,) = PREFIX.unpack_from(data, found - PREFIX_BYTES)
            following = found + length + PREFIX_BYTES
            if HEADER_BYTES <= length <= self._limits.max_record_bytes and (
                following + _MIN_STRIDE > self._stop or data.startswith(look, following)
            ):
                return found - PREFIX_BYTES
            found = data.find(look, found + 1, end)
        return -1

    def _walk_all(self) -> Offsets:
        """Move all lanes, a record at a time, until each has reached the next one's start.

        Returns the position of every lane (columns) after every step (rows). Nothing is checked on
        the way, as each operation counts here: a lane that left the chain or passed its goal goes
        on somewhere, never backwards because lengths are taken as unsigned.
        """
        last = self._stop - PREFIX_BYTES
        lengths = np.ndarray((last + 1,), np.uint32, self._data, 0, (1,))
        goal = self._goals()
        steps = np.empty((_MAX_STEPS + 1, len(goal)), np.int64)
        steps[0] = self._starts
        readable = np.empty(len(goal), np.int64)
        for step in range(_MAX_STEPS):
            np.minimum(steps[step], last, out=readable)
            length = lengths[readable]
            length.byteswap(inplace=True)
            following = steps[step + 1]
            np.add(steps[step], length, out=following)
            following += PREFIX_BYTES
            if step % _STEPS_PER_CHECK == 0 and (following >= goal).all():
                return steps[: step + 2]
        return steps

    def _judge(self, steps: Offsets) -> npt.NDArray[np.bool_]:
        """Tell which steps started at a whole record before the goal, with no gap before it."""
        length = np.diff(steps, axis=0)
        length -= PREFIX_BYTES
        is_record = steps[:-1] < self._goals()
        is_broken = (length < self._limits.min_record_bytes) | (
            length > self._limits.max_record_bytes
        )
        is_broken |= steps[1:] > self._stop
        is_broken &= is_record
        if is_broken.any():
            is_record &= ~np.logical_or.accumulate(is_broken, axis=0)
        return is_record

    def _goals(self) -> Offsets:
        """Return where each lane may end: at the next; the last where no length can be read."""
        return np.append(self._starts[1:], self._stop - PREFIX_BYTES + 1)

    def _prove(self, ends: Offsets) -> tuple[npt.NDArray[np.bool_], list[int], int]:
        """Find the lanes of the chain, the records between them, and the chain's end."""
        lane_at = {int(start): lane for lane, start in enumerate(self._starts)}
        is_proven = np.zeros(len(self._starts), bool)
        extra: list[int] = []
        lane: int | None = 0
        position = 0
        while True:
            if lane is not None:
                is_proven[lane] = True
                position = int(ends[lane])
            else:
                extra.append(position)
                (length,) = PREFIX.unpack_from(self._data, position)
                position += PREFIX_BYTES + length
            if not self._is_whole(position):
                return is_proven, extra, position
            lane = lane_at.get(position)

    def _is_whole(self, position: int) -> bool:
        """Tell whether a whole record of a valid length stands here."""
        if position + PREFIX_BYTES > self._stop:
            return False
        (length,) = PREFIX.unpack_from(self._data, position)
        limits = self._limits
        is_valid: bool = limits.min_record_bytes <= length <= limits.max_record_bytes
        return is_valid and position + PREFIX_BYTES + length <= self._stop


_TIME_OFFSET = PREFIX_BYTES
_ATTEMPTS_OFFSET = _TIME_OFFSET + 8
_ID_OFFSET = _ATTEMPTS_OFFSET + 2
_BODY_OFFSET = PREFIX_BYTES + HEADER_BYTES
DEFERRED = "deferred"
# Behind every body; without a stop, Arrow's binary_slice loses bytes.
_NO_STOP = 2**31 - 1

assert _ID_OFFSET + ID_BYTES == _BODY_OFFSET


class Records:
    """Some whole records of a segment, in memory, of which some may be dropped."""

    def __init__(
        self,
        data: bytearray,
        stop: int,
        offsets: Offsets,
        end: int,
        *,
        base: int,
        file_offsets: Offsets | None = None,
    ) -> None:
        """Point into `data`; nothing is copied, so it must stay as it is until the batch is built.

        Args:
            stop: how much of `data` counts.
            offsets: where the records start, back to back.
            end: where the last one ends.
            base: the offset of data[0] in the file.
            file_offsets: those of the records if they do not stand back to back in the file.
        """
        self._data = data
        self._stop = stop
        self._offsets = offsets
        self._end = end
        self._file_offsets = file_offsets
        self._base = base
        # Indexes of the records that are not dropped; None for all.
        self._kept: npt.NDArray[np.intp] | None = None
        # Of all records: when they are due, 0 for none; and which are deferred.
        self._due_ns: Offsets | None = None
        self._is_deferred: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self._offsets if self._kept is None else self._kept)

    def file_offset(self, index: int) -> int:
        """Return the offset of a record in the file."""
        if self._file_offsets is not None:
            return int(self._file_offsets[index])
        return int(self._offsets[index]) + self._base

    @property
    def file_end(self) -> int:
        """Where the last record ends in the file, if they stand back to back there."""
        return self._base + self._end

    def first_kept_offset(self) -> int:
        """Return the offset in the file of the first record that is not dropped."""
        return int(self._offsets_in_file()[0])

    def file_offsets_past(self, target: int, step: int) -> list[int]:
        """Return the first record at or behind target, target + step, ...: places to cut."""
        offsets = self._offsets + self._base
        targets = np.arange(target, offsets[-1] + 1, step)
        return [int(offsets[index]) for index in np.searchsorted(offsets, targets)]

    def set_due(self, due_ns: Offsets, *, is_deferred: npt.NDArray[np.bool_] | None = None) -> None:
        """Add the time when each record is due; before any is dropped."""
        assert self._kept is None
        assert len(due_ns) == len(self._offsets)
        self._due_ns = due_ns
        self._is_deferred = is_deferred

    def ids(self) -> npt.NDArray[Any]:
        """Return the ids, 16 bytes each."""
        return self._gather(np.dtype(("V", ID_BYTES)), _ID_OFFSET)

    def keep_between(self, since_ns: int | None, until_ns: int | None) -> None:
        """Drop the records before `since_ns`, and those at `until_ns` or later."""
        times = self._times()
        is_kept = np.ones(len(times), bool)
        if since_ns is not None:
            is_kept &= times >= since_ns
        if until_ns is not None:
            is_kept &= times < until_ns
        self._keep(is_kept)

    def drop_within(self, bounds: Offsets) -> None:
        """Drop the records in ranges of the file, given as their starts and ends in turns."""
        offsets = self._offsets_in_file()
        # Behind a start and before its end, the number of bounds passed is odd.
        self._keep(np.searchsorted(bounds, offsets, side="right") % 2 == 0)

    def _keep(self, is_kept: npt.NDArray[np.bool_]) -> None:
        if not is_kept.all():
            kept = np.flatnonzero(is_kept)
            self._kept = kept if self._kept is None else self._kept[kept]

    def batch(self, schema: pa.Schema, constants: Constants) -> pa.RecordBatch:
        """Build the columns of a schema that `arrow_schema` made."""
        return pa.record_batch(
            [self._column(field.name, field.type, constants) for field in schema], schema=schema
        )

    def _column(self, name: str, arrow_type: pa.DataType, constants: Constants) -> pa.Array:
        count = len(self)
        match name:
            case "node" | "topic" | "channel" | "segment" | "is_bad":
                return pa.repeat(pa.scalar(getattr(constants, name), arrow_type), count)
            case "offset":
                return pa.array(self._offsets_in_file())
            case "timestamp":
                times = self._times() // 1000
                return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(times)])
            case "timestamp_ns":
                return pa.array(self._times())
            case "attempts":
                attempts = self._gather(np.dtype(np.uint16), _ATTEMPTS_OFFSET)
                return pa.array(attempts.byteswap(inplace=True).astype(np.int32))
            case "size":
                lengths = self._gather(np.dtype(np.int32), 0).byteswap(inplace=True)
                return pa.array(lengths - np.int32(HEADER_BYTES))
            case "id":
                return _id_array(self.ids())
            case "body":
                return self._body_array()
            case _:
                return self._fate_column(name, arrow_type, constants)

    def _fate_column(self, name: str, arrow_type: pa.DataType, constants: Constants) -> pa.Array:
        """Build a column that no record has: where a message is, and until when."""
        match name:
            case "state":
                return self._state_array(constants.state)
            case "due":
                return self._due_array(arrow_type)
            case _:
                assert name == "damage"
                return pa.nulls(len(self), arrow_type)

    def _state_array(self, state: str | None) -> pa.Array:
        if self._is_deferred is None:
            return pa.repeat(pa.scalar(state, pa.string()), len(self))
        deferred = self._only_kept(self._is_deferred)
        return pc.if_else(pa.array(deferred), DEFERRED, state)

    def _due_array(self, arrow_type: pa.DataType) -> pa.Array:
        if self._due_ns is None:
            return pa.nulls(len(self), arrow_type)
        due_ns = self._only_kept(self._due_ns)
        return pa.array(due_ns // 1000, pa.int64(), mask=due_ns == 0).cast(arrow_type)

    def _only_kept(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._kept is None else values[self._kept]

    def _offsets_in_file(self) -> Offsets:
        offsets = self._file_offsets
        if offsets is None:
            offsets = self._offsets + self._base
        return offsets if self._kept is None else offsets[self._kept]

    def _times(self) -> Offsets:
        times: Offsets = self._gather(np.dtype(np.int64), _TIME_OFFSET).byteswap(inplace=True)
        return times

    def _gather(self, kind: np.dtype[Any], header_offset: int) -> npt.NDArray[Any]:
        """Gather one field of the records, as it is in the file: big-endian.

        Fields are gathered one by one, as each costs a quarter of the whole header.
        """
        room = max(self._stop - header_offset - kind.itemsize + 1, 0)
        everywhere: npt.NDArray[Any] = np.ndarray((room,), kind, self._data, header_offset, (1,))
        return everywhere[self._offsets if self._kept is None else self._offsets[self._kept]]

    def _body_array(self) -> pa.Array:
        """Let Arrow copy the bodies in one go: records as values, cut behind their headers.

        `take` of every second value of headers and bodies in turns took 1.7x as long.
        """
        bounds = np.append(self._offsets, self._end).astype(np.int32)
        records = pa.Array.from_buffers(
            pa.binary(),
            len(self._offsets),
            [None, pa.py_buffer(bounds), pa.py_buffer(self._data)],
        )
        if self._kept is not None:
            records = records.take(pa.array(self._kept))
        return pc.binary_slice(records, _BODY_OFFSET, stop=_NO_STOP)


def damage_batch(schema: pa.Schema, constants: Constants, offset: int, text: str) -> pa.RecordBatch:
    """Return a row that stands for a place without messages: its text is in the column damage."""
    values = {
        "node": constants.node,
        "topic": constants.topic,
        "channel": constants.channel,
        "segment": constants.segment,
        "offset": offset,
        "is_bad": constants.is_bad,
        "id": "",
        "body": b"",
        "state": None,
        "due": None,
        "damage": text,
    }
    arrays = [pa.array([values.get(field.name, 0)], field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _id_array(ids: npt.NDArray[np.void]) -> pa.Array:
    """Return ids as text; a byte that is not UTF-8 becomes an escape such as `\\xff`."""
    raw = np.ascontiguousarray(ids).view(np.uint8)
    if raw.size and raw.max() >= 0x80:
        return pa.array([bytes(value).decode("utf-8", "backslashreplace") for value in ids])
    bounds = np.arange(0, ID_BYTES * len(ids) + 1, ID_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(ids), [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    )
