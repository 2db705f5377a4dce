"""Due times of a snapshot: when messages in flight time out, and when deferred ones are due.

A part of a snapshot has a file with one time for each of its records, in their order. Records in
segments have one file for the whole queue, with an id before each time, in no order; it may have
ids that no record has.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spark_jobs.read.files.records import Records

_ENTRY = np.dtype([("id", "V16"), ("due", ">i8")])
_HALF = np.dtype(">u8")


class ParsedDueTimes(Protocol):
    """The times of one slice, which is read from its first record on."""

    def add_to(self, records: Records) -> None:
        """Add the times to the next records."""


@dataclass(frozen=True, slots=True)
class DueTimes:
    """Where the due times of a slice are; picklable."""

    file_name: str
    byte_count: int
    # Whether ids stand before the times: those of segments.
    has_ids: bool
    # When the snapshot was taken: a record in a segment is deferred if it is due later.
    taken_ns: int

    def parse(self, data: bytes) -> ParsedDueTimes:
        """Parse the file."""
        if self.has_ids:
            return _TimesById(np.frombuffer(_whole(data, _ENTRY.itemsize), _ENTRY), self.taken_ns)
        return _TimesInOrder(np.frombuffer(_whole(data, 8), ">i8").astype(np.int64))


def _whole(data: bytes, size: int) -> bytes:
    return data[: len(data) // size * size]


class _TimesInOrder:
    """One time for each record."""

    def __init__(self, due_ns: npt.NDArray[np.int64]) -> None:
        self._due_ns = due_ns
        self._done = 0

    def add_to(self, records: Records) -> None:
        due_ns = self._due_ns[self._done : self._done + len(records)]
        self._done += len(records)
        # A file that is too short tells nothing of the rest.
        records.set_due(np.pad(due_ns, (0, len(records) - len(due_ns))))


class _TimesById:
    """Times that are looked up by the id of a record."""

    def __init__(self, entries: npt.NDArray[Any], taken_ns: int) -> None:
        later = entries[entries["due"].astype(np.int64) > taken_ns]
        order = np.argsort(_keys(later["id"]))
        self._keys = _keys(later["id"])[order]
        self._due_ns = later["due"].astype(np.int64)[order]

    def add_to(self, records: Records) -> None:
        if not len(self._keys):
            return
        keys = _keys(records.ids())
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        due_ns = np.where(self._keys[places] == keys, self._due_ns[places], 0)
        records.set_due(due_ns, is_deferred=due_ns > 0)


def _keys(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ids as values that numpy can order: it cannot order plain bytes with zeros."""
    halves = np.ascontiguousarray(ids).view(_HALF).reshape(-1, 2)
    keys = np.empty(len(halves), np.dtype([("high", np.uint64), ("low", np.uint64)]))
    keys["high"], keys["low"] = halves[:, 0], halves[:, 1]
    return keys
