"""Verifier: judges the bytes that a queue's reader has just read, by the checksums of the segment.

The queue's `Reader` owns one, and tells it where it stands (`Place`). Records that are denied are
counted here. A checksum file that cannot be read is told once, and keeps no record back.
"""

import logging
import os
import stat
from functools import partial
from typing import NamedTuple, NoReturn

from diskqueue import layout
from diskqueue.checksums.checks import (
    NOWHERE,
    Clearance,
    Denial,
    SegmentChecks,
    find_torn,
)
from diskqueue.checksums.entries import make_seed
from diskqueue.checksums.marks import have_same_mark
from diskqueue.errors import CorruptSegmentError
from diskqueue.salvage import SECTOR_BYTES
from diskqueue.segment import SegmentState


class ChecksumFailures:
    """How many records were not delivered because of their checksums; queues may share one."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Place(NamedTuple):
    """Where a reader stands, and how far it may read."""

    segment: SegmentState
    path: str
    fd: int
    position: int
    limit: int


class Verdict(NamedTuple):
    """How much of some bytes can be delivered."""

    # The bytes with the lengths of good records repaired.
    data: bytes
    # How many of them can be, and whether checksums prove it.
    clear_bytes: int
    is_covered: bool = False
    # Where a record without a checksum must end at the latest, and where it lacks a sector.
    piece_end: int = NOWHERE
    torn: int = NOWHERE


class Verifier:
    """The checksums of the segment that a reader stands in."""

    def __init__(
        self,
        queue_name: str,
        failures: ChecksumFailures,
        max_record_bytes: int,
        logger: logging.Logger,
    ) -> None:
        self._queue_name = queue_name
        self.failures = failures
        self._max_record_bytes = max_record_bytes
        self._logger = logger
        self._checks: SegmentChecks | None = None
        self._fd = -1
        self._path = ""
        self._has_told = False

    def judge(self, data: bytes, place: Place, *, is_whole: bool = False) -> Verdict:
        """Tell how many of the bytes at a place can be delivered.

        Args:
            is_whole: the bytes behind cannot be read.

        Raises:
            CorruptSegmentError: not even the first record.
            OSError: the segment cannot be read.
        """
        position, limit = place.position, place.limit
        checks = self._find_checks(place) if data else None
        if checks is None:
            found: Clearance | Denial = Clearance(position + len(data), data, is_covered=False)
        else:
            is_whole = is_whole or position + len(data) >= limit
            found = checks.clear(data, position, is_whole=is_whole)
            if isinstance(found, Clearance) and found.needed_bytes:
                data = os.pread(place.fd, min(found.needed_bytes, limit - position), position)
                found = checks.clear(data, position, is_whole=True)
        if isinstance(found, Denial):
            self.deny(place, "the checksum is wrong", found.resume, found.record_count)
        if found.repaired_count:
            self.failures.count += found.repaired_count
            self._logger.warning(
                "diskqueue lengths repaired by their checksums file=%s offset=%d records=%d",
                *(place.path, position, found.repaired_count),
            )
        torn = NOWHERE
        if not found.is_covered:
            doubts = [place.segment.doubt, *(checks.doubts if checks is not None else ())]
            torn = min(_find_torn(found, place, doubt) for doubt in doubts)
        return Verdict(found.data, found.end - position, found.is_covered, found.piece_end, torn)

    def deny(
        self, place: Place, reason: str, resume: int | None = None, record_count: int = 1
    ) -> NoReturn:
        """Count records that are not delivered.

        Raises:
            CorruptSegmentError: always.
        """
        self.failures.count += record_count
        raise CorruptSegmentError(
            *(place.path, place.position, reason),
            is_torn=False,
            resume=None if resume is None else min(resume, place.limit),
            record_count=record_count,
        )

    def find_next_covered(self, place: Place, position: int) -> int | None:
        """Return where the next records begin that have checksums, None if nowhere.

        Raises:
            OSError: the segment cannot be read.
        """
        checks = self._find_checks(place)
        return None if checks is None else checks.find_next_covered(position)

    def forget(self) -> None:
        """Close the checksum file: the reader leaves the segment, or the end of it was cut off."""
        self._checks = None
        self._has_told = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _find_checks(self, place: Place) -> SegmentChecks | None:
        if self._checks is not None:
            return self._checks
        self._path = layout.checksum_path(place.path)
        try:
            if self._fd < 0:  # not open already, without a status
                # Not to wait for the other end of a pipe.
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell_unreadable(error)
            return None
        self._checks = SegmentChecks(
            self._read if stat.S_ISREG(status.st_mode) else _read_nothing,
            partial(os.pread, place.fd),
            make_seed(self._queue_name, place.segment.number),
            self._max_record_bytes,
            have_same_mark=partial(have_same_mark, place.fd, self._fd),
            position=place.position,
            size_bytes=status.st_size,
        )
        return self._checks

    def _read(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            self._tell_unreadable(error)
            return b""

    def _tell_unreadable(self, error: OSError) -> None:
        if not self._has_told:
            self._has_told = True
            self._logger.warning(
                "diskqueue checksums unreadable, records go without file=%s error=%s",
                *(self._path, error),
            )


def _read_nothing(_size: int, _offset: int) -> bytes:
    """Read a directory or a pipe, which has the name of a checksum file."""
    return b""


def _find_torn(found: Clearance, place: Place, doubt: tuple[int, int]) -> int:
    """Return where bytes lack a sector that have no checksum and that no sync is known to cover."""
    doubt_start, doubt_end = doubt
    start = max(place.position, doubt_start)
    end = min(found.end, doubt_end)
    if start >= end:
        return NOWHERE
    data = found.data[start - place.position : end - place.position]
    # The rest of the last sector.
    data += os.pread(place.fd, min(-end % SECTOR_BYTES, doubt_end - end), end)
    torn = find_torn(data, start)
    return NOWHERE if torn is None else torn
