"""Arrow columns from a piece of a segment and the offsets of its records.

    0         4         12         14                30
    | int32   | int64   | uint16   | 16 bytes        | ...
    | length  | time ns | attempts | id              | body

Only the columns asked for are built. What comes out owns its memory: the piece's buffer is used
again for the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from diskqueue.envelope import HEADER_BYTES, ID_BYTES
from diskqueue.segment import PREFIX_BYTES
from spark_jobs.read.lanes import Offsets

_TIME_OFFSET = PREFIX_BYTES
_ATTEMPTS_OFFSET = _TIME_OFFSET + 8
_ID_OFFSET = _ATTEMPTS_OFFSET + 2
_BODY_OFFSET = PREFIX_BYTES + HEADER_BYTES
# Behind every body; without a stop, Arrow's binary_slice loses bytes.
_NO_STOP = 2**31 - 1

assert _ID_OFFSET + ID_BYTES == _BODY_OFFSET

# Name -> Spark's type, Arrow's type, whether it may be null.
_COLUMNS: dict[str, tuple[DataType, pa.DataType, bool]] = {
    "node": (StringType(), pa.string(), False),
    "topic": (StringType(), pa.string(), False),
    "channel": (StringType(), pa.string(), True),
    "segment": (LongType(), pa.int64(), False),
    "offset": (LongType(), pa.int64(), False),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC"), False),
    "timestamp_ns": (LongType(), pa.int64(), False),
    "attempts": (IntegerType(), pa.int32(), False),
    "id": (StringType(), pa.string(), False),
    "body": (BinaryType(), pa.binary(), False),
    "is_bad": (BooleanType(), pa.bool_(), False),
    "size": (IntegerType(), pa.int32(), False),
}
# Marks what was salvaged from `.bad` files; only there when these are asked for.
BAD_COLUMN = "is_bad"
# The body's size without the body; only there when it is asked for by name.
SIZE_COLUMN = "size"
MESSAGE_COLUMNS = tuple(name for name in _COLUMNS if name not in (BAD_COLUMN, SIZE_COLUMN))
ALL_COLUMNS = tuple(_COLUMNS)


@dataclass(frozen=True, slots=True)
class Constants:
    """What all records of one slice share."""

    node: str
    topic: str
    channel: str | None
    segment: int
    is_bad: bool


def message_schema(names: Sequence[str]) -> StructType:
    """The Spark schema of these columns."""
    return StructType([StructField(name, _COLUMNS[name][0], _COLUMNS[name][2]) for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema Spark expects for its own.

    Raises:
        ValueError: a column does not exist or has another type.
    """
    fields = []
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise ValueError(
                f"no column {field.name!r} in format nsq; there are {', '.join(ALL_COLUMNS)}"
            )
        spark_type, arrow_type, _ = _COLUMNS[field.name]
        if field.dataType != spark_type:
            raise ValueError(
                f"column {field.name!r} of format nsq is {spark_type.simpleString()},"
                f" not {field.dataType.simpleString()}"
            )
        fields.append(pa.field(field.name, arrow_type, nullable=field.nullable))
    return pa.schema(fields)


class Piece:
    """Some records of a segment, in memory."""

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
        """Makes one; nothing is copied, so the data must stay as it is while the piece is used.

        Args:
            stop: how much of `data` counts.
            offsets: where the records start, back to back.
            end: where the last one ends.
            base: where data[0] is in the file.
            file_offsets: where the records are in the file if they were not back to back there.
        """
        self._data = data
        self._stop = stop
        self._offsets = offsets
        self._end = end
        self._file_offsets = file_offsets
        self._base = base
        # Which records are wanted; None for all.
        self._kept: npt.NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self._offsets if self._kept is None else self._kept)

    def file_offset(self, index: int) -> int:
        """Where a record is in the file."""
        if self._file_offsets is not None:
            return int(self._file_offsets[index])
        return int(self._offsets[index]) + self._base

    def file_offsets_past(self, target: int, step: int) -> list[int]:
        """The first record at or behind each of target, target + step, ...: places to cut."""
        offsets = self._offsets + self._base
        targets = np.arange(target, offsets[-1] + 1, step)
        return [int(offsets[index]) for index in np.searchsorted(offsets, targets)]

    def keep_between(self, since_ns: int | None, until_ns: int | None) -> None:
        """Drops the records before `since_ns`, and those at `until_ns` or later."""
        times = self._times()
        is_kept = np.ones(len(times), bool)
        if since_ns is not None:
            is_kept &= times >= since_ns
        if until_ns is not None:
            is_kept &= times < until_ns
        self._keep(is_kept)

    def drop_within(self, bounds: Offsets) -> None:
        """Drops the records in ranges of the file, given as their starts and ends in turns."""
        offsets = self._file_offsets
        if offsets is None:
            offsets = self._offsets + self._base
        if self._kept is not None:
            offsets = offsets[self._kept]
        # Behind a start and before its end, the number of bounds passed is odd.
        self._keep(np.searchsorted(bounds, offsets, side="right") % 2 == 0)

    def _keep(self, is_kept: npt.NDArray[np.bool_]) -> None:
        if not is_kept.all():
            kept = np.flatnonzero(is_kept)
            self._kept = kept if self._kept is None else self._kept[kept]

    def batch(self, schema: pa.Schema, constants: Constants) -> pa.RecordBatch:
        """The records as columns of this schema, see `arrow_schema`."""
        return pa.record_batch(
            [self._column(field.name, field.type, constants) for field in schema], schema=schema
        )

    def _column(self, name: str, arrow_type: pa.DataType, constants: Constants) -> pa.Array:
        count = len(self)
        match name:
            case "node" | "topic" | "channel" | "segment" | "is_bad":
                return pa.repeat(pa.scalar(getattr(constants, name), arrow_type), count)
            case "offset":
                offsets = self._file_offsets
                if offsets is None:
                    offsets = self._offsets + self._base
                return pa.array(offsets if self._kept is None else offsets[self._kept])
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
                return _id_array(self._gather(np.dtype(("V", ID_BYTES)), _ID_OFFSET))
            case _:
                assert name == "body"
                return self._body_array()

    def _times(self) -> Offsets:
        times: Offsets = self._gather(np.dtype(np.int64), _TIME_OFFSET).byteswap(inplace=True)
        return times

    def _gather(self, kind: np.dtype[Any], header_offset: int) -> npt.NDArray[Any]:
        """One field of the wanted records, as it is in the file: big-endian.

        Fields are gathered one by one, as each costs a quarter of the whole header.
        """
        room = max(self._stop - header_offset - kind.itemsize + 1, 0)
        everywhere: npt.NDArray[Any] = np.ndarray((room,), kind, self._data, header_offset, (1,))
        return everywhere[self._offsets if self._kept is None else self._offsets[self._kept]]

    def _body_array(self) -> pa.Array:
        """The bodies, copied by Arrow in one go: records as values, cut behind their headers.

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


def _id_array(ids: npt.NDArray[np.void]) -> pa.Array:
    """Ids as text. A byte that is not UTF-8 becomes an escape such as `\\xff`, so none is lost."""
    raw = np.ascontiguousarray(ids).view(np.uint8)
    if raw.size and raw.max() >= 0x80:
        return pa.array([bytes(value).decode("utf-8", "backslashreplace") for value in ids])
    bounds = np.arange(0, ID_BYTES * len(ids) + 1, ID_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(ids), [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    )
