"""Which queues a directory holds, and which part of each segment there is to read.

The directory may belong to a running nsqd, which appends, rolls and deletes meanwhile. No lock is
taken, so the order of looking matters:

1. list the files, for the names of the queues;
2. read each queue's metadata: what it speaks of is synced and does not change, but may be deleted;
3. list again, for sizes that are at least as new as the metadata;
4. if a segment the metadata speaks of is missing, read that metadata again, for a newer read
   position: if the segment is before it, it was consumed; otherwise it is really missing.

Of a queue with usable metadata nothing behind the synced write position is read: those bytes may be
half a record. Without metadata every segment is read from its beginning to its end, as nsqd does
when it starts.
"""

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import attrgetter

from diskqueue import layout
from diskqueue.errors import CorruptMetadataError
from spark_jobs.read.finished_records import (
    NOTHING_FINISHED,
    FinishedRecords,
    read_finished_records,
)
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.storage import Directory, expand

ARCHIVE_DIRECTORY = "archive"

_MAX_METADATA_BYTES = 4096
# A remote store answers in tens of milliseconds, and there may be thousands of queues.
_REMOTE_THREADS = 16
# Of the column segment, and of go-diskqueue.
_MAX_SEGMENT = 2**63 - 1
_BAD_SUFFIX = re.compile(r"\.bad(?:\.\d+)?\Z")


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The part of a segment to read; both ends are between two records."""

    number: int
    start: int
    end: int
    # Where the file itself ended when it was looked at.
    size: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a queue, as far as it shows without reading segments."""

    kind: str
    segment: int | None
    offset: int | None
    byte_count: int | None
    reason: str
    file_name: str


@dataclass(slots=True)
class Queue:
    """One queue of one data directory."""

    node: str
    directory: str
    name: str
    metadata: layout.Metadata | None = None
    sizes: dict[int, int] = field(default_factory=dict)  # segment number -> size
    bad_files: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> number, size
    # Set if there is a metadata file that cannot be used.
    metadata_fault: str | None = None
    # What is finished behind the read position.
    finished: FinishedRecords = NOTHING_FINISHED

    @property
    def topic(self) -> str:
        """The topic."""
        return layout.split_queue_name(self.name)[0]

    @property
    def channel(self) -> str | None:
        """The channel, or None for a topic's own queue."""
        return layout.split_queue_name(self.name)[1]

    def file_name(self, number: int) -> str:
        """The name of a segment's file."""
        return os.path.basename(layout.segment_path("", self.name, number))

    def ranges(self, *, is_from_earliest: bool, includes_unsynced: bool) -> list[SegmentRange]:
        """What there is to read of each segment, in order; segments without anything are out."""
        ranges = []
        for number, size in self.sizes.items():
            start, end = 0, size
            metadata = self.metadata
            if metadata is not None:
                if not is_from_earliest:
                    if number < metadata.read_file:
                        continue
                    start = metadata.read_pos if number == metadata.read_file else 0
                if not includes_unsynced:
                    end = self._synced_end(metadata, number, size)
            if start < end:
                ranges.append(SegmentRange(number, start, end, size))
        return ranges

    def synced_position(self) -> tuple[int, int]:
        """Where what may be read ends: a segment and an offset."""
        if self.metadata is not None:
            return self.metadata.write_file, self.metadata.write_pos
        if not self.sizes:
            return 0, 0
        last = max(self.sizes)
        return last, self.sizes[last]

    @staticmethod
    def _synced_end(metadata: layout.Metadata, number: int, size: int) -> int:
        if number > metadata.write_file:
            return 0
        return min(size, metadata.write_pos) if number == metadata.write_file else size

    def missing_segments(self) -> list[range]:
        """Segments with unread records that are not there, as ranges of numbers."""
        metadata = self.metadata
        if metadata is None:
            return []
        read = metadata.read_file, metadata.read_pos
        if read == (metadata.write_file, metadata.write_pos):
            return []
        # At position 0 the last segment need not exist.
        stop = metadata.write_file + (metadata.write_pos > 0)
        deleted = [range(first, last + 1) for first, last in self.finished.gaps]
        return find_gaps([*ranges_of(self.sizes), *deleted], metadata.read_file, stop)

    def problems(self) -> Iterator[Problem]:
        """What the listing and the metadata show to be wrong or worth knowing."""
        if self.metadata_fault is not None:
            name = os.path.basename(layout.metadata_path("", self.name))
            yield Problem("metadata", None, None, None, self.metadata_fault, name)
        for gap in self.missing_segments():
            reason = "the segment is missing"
            if len(gap) > 1:
                reason = f"segments {gap[0]} to {gap[-1]} are missing"
            yield self._problem("missing", gap[0], 0, None, reason)
        metadata = self.metadata
        if metadata is None:
            return
        for what, number, position in (
            ("read", metadata.read_file, metadata.read_pos),
            ("write", metadata.write_file, metadata.write_pos),
        ):
            size = self.sizes.get(number)
            if size is not None and size < position:
                reason = f"the file is shorter than the {what} position {position}"
                yield self._problem("short", number, size, position - size, reason)
        for number, size in self.sizes.items():
            end = self._synced_end(metadata, number, size)
            if end < size:
                reason = "written after the last sync; read with includeUnsynced=true"
                yield self._problem("unsynced", number, end, size - end, reason)

    def _problem(
        self, kind: str, number: int, offset: int, byte_count: int | None, reason: str
    ) -> Problem:
        return Problem(kind, number, offset, byte_count, reason, self.file_name(number))


def ranges_of(numbers: Iterable[int]) -> list[range]:
    """A range of one for each."""
    return [range(number, number + 1) for number in numbers]


def find_gaps(covered: Iterable[range], start: int, stop: int) -> list[range]:
    """What the ranges leave out between start and, exclusively, stop.

    Broken metadata may speak of billions of segments, so nothing here counts up to them.
    """
    gaps = []
    expected = start
    for each in sorted(covered, key=attrgetter("start")):
        if expected < min(each.start, stop):
            gaps.append(range(expected, min(each.start, stop)))
        expected = max(expected, each.stop)
    if expected < stop:
        gaps.append(range(expected, stop))
    return gaps


def find_queues(options: ReadOptions) -> list[Queue]:
    """The queues that the options select, by directory and name.

    Raises:
        FileNotFoundError: a directory does not exist.
        OSError: a file or directory cannot be read.
    """
    data_paths = list(dict.fromkeys(_expand_all(options.paths)))
    nodes = [options.node] * len(data_paths) if options.node else node_names(data_paths)
    queues: list[Queue] = []
    for node, data_path in zip(nodes, data_paths, strict=True):
        directory = Directory(data_path)
        if not directory.exists():
            raise FileNotFoundError(f"no such data directory: {data_path}")
        if options.origin is Origin.ARCHIVE:
            directory = Directory(directory.path_of(ARCHIVE_DIRECTORY))
            if not directory.exists():
                continue
        queues += _Look(directory, node, options).queues()
    return queues


def _expand_all(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        found = expand(path)
        if not found:
            raise FileNotFoundError(f"no data directory matches {path}")
        yield from (name.rstrip("/") or "/" for name in found)


def node_names(paths: list[str]) -> list[str]:
    """A name per directory: its own, or, where that is not unique, what tells them apart."""
    parts = [(path if "://" in path else os.path.abspath(path)).split("/") for path in paths]
    last = [each[-1] for each in parts]
    if len(set(last)) == len(last):
        return last
    shortest = min(map(len, parts))
    head = 0
    while head < shortest - 1 and len({each[head] for each in parts}) == 1:
        head += 1
    tail = 0
    while tail < shortest - head - 1 and len({each[-1 - tail] for each in parts}) == 1:
        tail += 1
    return ["/".join(each[head : len(each) - tail]) for each in parts]


def _join(older: layout.Metadata, newer: layout.Metadata | None) -> layout.Metadata:
    """What was there to read between two looks at the metadata, with a listing between them.

    What is behind the newer read position was not deleted yet when the files were listed, and what
    is before the older write position was synced by then. A queue without metadata was emptied.
    """
    end = older.write_file, older.write_pos
    start = end if newer is None else min((newer.read_file, newer.read_pos), end)
    return layout.Metadata(older.depth, *start, *end)


class _Look:
    """The queues of one directory, looked at in an order that fits together."""

    def __init__(self, directory: Directory, node: str, options: ReadOptions) -> None:
        self._directory = directory
        self._node = node
        self._options = options

    def queues(self) -> list[Queue]:
        names = self._selected(self._directory.list_files())
        queues = [Queue(self._node, self._directory.name, name) for name in sorted(names)]
        self._read_metadata(queues)
        self._read_finished(self._read_sizes(queues))
        holed = [queue for queue in queues if queue.missing_segments()]
        before = [queue.metadata for queue in holed]
        self._read_metadata(holed)
        for queue, older in zip(holed, before, strict=True):
            assert older is not None  # else nothing could be missing
            queue.metadata = _join(older, queue.metadata)
        return queues

    def _read_finished(self, queues: list[Queue]) -> None:
        """Which records are finished already, of queues that have a file for that."""
        for queue in queues:
            if queue.metadata is not None:
                found = read_finished_records(
                    self._directory, queue.name, queue.metadata, queue.sizes
                )
                queue.finished = found
                read = max(found.read, (queue.metadata.read_file, queue.metadata.read_pos))
                queue.metadata = replace(queue.metadata, read_file=read[0], read_pos=read[1])

    def _selected(self, files: dict[str, int]) -> set[str]:
        names = set()
        for file_name in files:
            name = _queue_name(file_name)
            if name is not None and self._options.selects(*layout.split_queue_name(name)):
                names.add(name)
        return names

    def _read_metadata(self, queues: list[Queue]) -> None:
        if self._directory.is_local or len(queues) <= 1:
            for queue in queues:
                self._read_one_metadata(queue)
            return
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            list(pool.map(self._read_one_metadata, queues))

    def _read_one_metadata(self, queue: Queue) -> None:
        queue.metadata = queue.metadata_fault = None
        file_name = os.path.basename(layout.metadata_path("", queue.name))
        text = self._directory.read_start(file_name, _MAX_METADATA_BYTES)
        if text is None:
            return
        try:
            metadata = layout.parse_metadata(text)
        except CorruptMetadataError as error:
            queue.metadata_fault = str(error)
            return
        if metadata.is_sane:
            queue.metadata = metadata
        else:
            queue.metadata_fault = "the read position is beyond the write position"

    def _read_sizes(self, queues: list[Queue]) -> list[Queue]:
        """Lists the segments; returns the queues that have a file of finished records."""
        by_name = {queue.name: queue for queue in queues}
        for queue in queues:
            queue.sizes = {}
            queue.bad_files = {}
        files = self._directory.list_files()
        for file_name, size in sorted(files.items()):
            parsed = _parse_segment_name(file_name)
            if parsed is None or parsed[0] not in by_name:
                continue
            name, number, is_bad = parsed
            if is_bad:
                by_name[name].bad_files[file_name] = number, size
            else:
                by_name[name].sizes[number] = size
        for queue in queues:
            queue.sizes = dict(sorted(queue.sizes.items()))
        sidecar = layout.finished_path("", "")[1:]
        return [queue for queue in queues if f"{queue.name}{sidecar}" in files]


def _queue_name(file_name: str) -> str | None:
    """The queue a segment, a quarantined segment or a metadata file belongs to."""
    parsed = _parse_segment_name(file_name)
    if parsed is not None:
        return parsed[0]
    # A metadata file has its queue's name in front of a fixed ending.
    ending = layout.metadata_path("", "")[1:]
    return (file_name.removesuffix(ending) or None) if file_name.endswith(ending) else None


def _parse_segment_name(file_name: str) -> tuple[str, int, bool] | None:
    """The queue and number of a segment, and whether it is quarantined.

    None also for names that only look like it, such as one with more zeros than nsqd writes.
    """
    bad = _BAD_SUFFIX.search(file_name)
    plain = file_name[: bad.start()] if bad else file_name
    parsed = layout.parse_segment_name(plain)
    if parsed is None:
        return None
    name, number = parsed
    if number > _MAX_SEGMENT or os.path.basename(layout.segment_path("", name, number)) != plain:
        return None
    return name, number, bad is not None
