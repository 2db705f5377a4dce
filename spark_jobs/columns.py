"""Arrow columns from a piece of a segment and the offsets of its records.

    0         4         12         14                30
    | int32   | int64   | uint16   | 16 bytes        | ...
    | length  | time ns | attempts | id              | body

Only the columns asked for are built. What comes out owns its memory: the piece's buffer is used
again for the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
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
from spark_jobs.lanes import Offsets

_HEADER = np.dtype([("length", ">i4"), ("time", ">i8"), ("attempts", ">u2"), ("id", "V16")])
_BODY_OFFSET = PREFIX_BYTES + HEADER_BYTES

assert _HEADER.itemsize == _BODY_OFFSET

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
        self._offsets = offsets
        self._end = end
        self._file_offsets = file_offsets
        self._base = base
        headers = np.ndarray((max(stop - _BODY_OFFSET + 1, 0),), _HEADER, data, 0, (1,))
        self._headers = headers[offsets]
        # Which records are wanted; None for all.
        self._kept: npt.NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self._headers)

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
        times = self._headers["time"]
        is_kept = np.ones(len(times), bool)
        if since_ns is not None:
            is_kept &= times >= since_ns
        if until_ns is not None:
            is_kept &= times < until_ns
        if not is_kept.all():
            self._kept = np.flatnonzero(is_kept)
            self._headers = self._headers[self._kept]

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
                times = self._headers["time"].astype(np.int64) // 1000
                return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(times)])
            case "timestamp_ns":
                return pa.array(self._headers["time"].astype(np.int64))
            case "attempts":
                return pa.array(self._headers["attempts"].astype(np.int32))
            case "size":
                return pa.array(self._headers["length"].astype(np.int32) - HEADER_BYTES)
            case "id":
                return _id_array(self._headers["id"])
            case _:
                assert name == "body"
                return self._body_array()

    def _body_array(self) -> pa.Array:
        """The bodies, copied by Arrow in one go.

        One binary array over the piece has headers and bodies in turns; `take` picks the bodies.
        """
        all_count = len(self._offsets)
        bounds = np.empty(2 * all_count + 1, np.int32)
        bounds[0:-1:2] = self._offsets
        bounds[1::2] = self._offsets
        bounds[1::2] += _BODY_OFFSET
        bounds[-1] = self._end
        turns = pa.Array.from_buffers(
            pa.binary(), 2 * all_count, [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        if self._kept is None:
            return turns.take(pa.array(np.arange(1, 2 * all_count, 2, dtype=np.int32)))
        return turns.take(pa.array(2 * self._kept + 1))


def _id_array(ids: npt.NDArray[np.void]) -> pa.Array:
    """Ids as text. A byte that is not UTF-8 becomes an escape such as `\\xff`, so none is lost."""
    raw = np.ascontiguousarray(ids).view(np.uint8)
    if raw.size and raw.max() >= 0x80:
        return pa.array([bytes(value).decode("utf-8", "backslashreplace") for value in ids])
    bounds = np.arange(0, ID_BYTES * len(ids) + 1, ID_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(ids), [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    )
