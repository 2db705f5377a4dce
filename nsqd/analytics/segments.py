"""Segments as readers are told of them, with the time of their first message.

By the first times readers of a span of time skip segments. A look at a file takes a thread; what
was found is remembered, since a segment's first record never changes.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, TypeAlias

from diskqueue import layout
from diskqueue.views.view import SegmentRange
from nsqd.analytics.threads import Threads
from nsqd.http.file_body import FileBody

MAX_REMEMBERED = 65_536

# The length of a record, then the timestamp of its message.
_record_start = Struct(">iq")

OpenSegment: TypeAlias = Callable[[SegmentRange], int]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that a reader asked for, open."""

    body: FileBody
    # Of a checksum file: whether it and its segment have the same mark.
    is_marked: bool | None = None


class SegmentBook:
    """The first times of segments, as far as they were looked up, and their entries in JSON."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        # By the generation of the queue and the number.
        self._times: dict[tuple[str, int], int] = {}

    async def describe(
        self,
        generation: str,
        segments: Sequence[SegmentRange],
        open_segment: OpenSegment,
        *,
        has_ranges: bool,
    ) -> list[dict[str, Any]]:
        """Return the entries of segments, for a snapshot with the ranges that are to be read."""
        times = self._times
        unknown = [each for each in segments if (generation, each.number) not in times]
        errors: dict[int, str] = {}
        if unknown:
            look_up = partial(self._look_up, generation, unknown, open_segment)
            errors = await self._threads.run(look_up)
        entries = []
        for segment in segments:
            entry: dict[str, Any] = {
                "file": name_of(segment),
                "number": segment.number,
                "end": segment.end,
                "first_ns": times.get((generation, segment.number)),
            }
            if has_ranges:
                entry["start"] = segment.start
                entry["finished"] = [[each.start, each.end] for each in segment.finished]
            if segment.number in errors:
                entry["error"] = errors[segment.number]
            entries.append(entry)
        return entries

    def _look_up(
        self, generation: str, segments: Sequence[SegmentRange], open_segment: OpenSegment
    ) -> dict[int, str]:
        """Look at segments; block. Return why some cannot be read, by their numbers."""
        errors: dict[int, str] = {}
        for segment in segments:
            try:
                head = _read_head(open_segment(segment))
            except OSError as error:
                errors[segment.number] = error.strerror or str(error)
                continue
            if len(head) == _record_start.size:
                if len(self._times) >= MAX_REMEMBERED:
                    self._times.clear()
                self._times[generation, segment.number] = _record_start.unpack(head)[1]
        return errors


def name_of(segment: SegmentRange) -> str:
    """Return the name of a segment's file."""
    return os.path.basename(segment.path)


def measure_checksums(segments: Iterable[SegmentRange]) -> int:
    """Return how many bytes the checksum files of segments have; block."""
    size_bytes = 0
    for segment in segments:
        # A segment whose checksum file cannot be looked at is read without.
        with contextlib.suppress(OSError):
            size_bytes += layout.find_size(layout.checksum_path(segment.path)) or 0
    return size_bytes


def open_checksums(open_both: Callable[[], tuple[int, bool]]) -> OpenFile:
    """Open a checksum file as it is now; block.

    Raises:
        FileNotFoundError: the segment has none.
        OSError: it cannot be opened.
    """
    fd, is_marked = open_both()
    status = os.fstat(fd)
    body = FileBody(fd, 0, status.st_size)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError("no file, but something else of that name")
    return OpenFile(body, is_marked)


def _read_head(fd: int) -> bytes:
    try:
        return os.pread(fd, _record_start.size, 0)
    finally:
        os.close(fd)
