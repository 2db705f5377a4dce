"""Records of a segment as Arrow columns, built from the bytes and the offsets of the records.

    0         4         12         14                30
    | int32   | int64   | uint16   | 16 bytes        | ...
    | length  | time ns | attempts | id              | body

Only the columns asked for are built. They own their memory: the buffer of the bytes is used again
for the next window of the file.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskqueue.envelope import HEADER_BYTES, ID_BYTES
from diskqueue.segment import PREFIX_BYTES
from spark_jobs.read.columns import Constants
from spark_jobs.read.files.lanes import Offsets

_TIME_OFFSET = PREFIX_BYTES
_ATTEMPTS_OFFSET = _TIME_OFFSET + 8
_ID_OFFSET = _ATTEMPTS_OFFSET + 2
_BODY_OFFSET = PREFIX_BYTES + HEADER_BYTES
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

    def __len__(self) -> int:
        return len(self._offsets if self._kept is None else self._kept)

    def file_offset(self, index: int) -> int:
        """Return the offset of a record in the file."""
        if self._file_offsets is not None:
            return int(self._file_offsets[index])
        return int(self._offsets[index]) + self._base

    def file_offsets_past(self, target: int, step: int) -> list[int]:
        """Return the first record at or behind target, target + step, ...: places to cut."""
        offsets = self._offsets + self._base
        targets = np.arange(target, offsets[-1] + 1, step)
        return [int(offsets[index]) for index in np.searchsorted(offsets, targets)]

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
                return _id_array(self._gather(np.dtype(("V", ID_BYTES)), _ID_OFFSET))
            case _:
                assert name == "body"
                return self._body_array()

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


def _id_array(ids: npt.NDArray[np.void]) -> pa.Array:
    """Return ids as text; a byte that is not UTF-8 becomes an escape such as `\\xff`."""
    raw = np.ascontiguousarray(ids).view(np.uint8)
    if raw.size and raw.max() >= 0x80:
        return pa.array([bytes(value).decode("utf-8", "backslashreplace") for value in ids])
    bounds = np.arange(0, ID_BYTES * len(ids) + 1, ID_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(ids), [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    )
