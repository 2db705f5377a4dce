"""The queues of data directories, found while an nsqd may be at work in them.

nsqd appends, rolls and deletes meanwhile. No lock is taken, so the order of looking matters:

1. list the files, for the names of the queues;
2. read each queue's metadata: the records it speaks of are synced and do not change, but may be
   deleted;
3. list again, for sizes that are at least as new as the metadata;
4. if a segment the metadata speaks of is missing, read that metadata again, for a newer read
   position: if the segment is before it, it was consumed; otherwise it is really missing.
"""

import logging
import os
import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from diskqueue import layout
from diskqueue.errors import CorruptMetadataError
from diskqueue.finished import sidecar
from diskqueue.identity import MAX_FILE_BYTES, Deleted, parse_generation
from spark_jobs.object_store import split_uri
from spark_jobs.read.files.directory import Directory, expand
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.queue import NOTHING_FINISHED, FinishedRecords, Queue

ARCHIVE_DIRECTORY = "archive"

# Files that nsqd keeps for readers: the id of the node, and the generation of each queue.
NODE_FILE = "nsqd.node"
_GENERATION_ENDING = ".diskqueue.generation"
_IDENTITY = re.compile(rb"[0-9a-f]{32}")
_MAX_METADATA_BYTES = 4096
# The size and the time of a record.
_FIRST_TIME = struct.Struct(">iq")
# A remote store answers in tens of milliseconds, and there may be thousands of queues.
_REMOTE_THREADS = 16
# Of the column segment, and of go-diskqueue.
_MAX_SEGMENT = 2**63 - 1
_BAD_SUFFIX = re.compile(r"\.bad(?:\.[0-9]+)?\Z")

_logger = logging.getLogger(__name__)


def find_queues(options: ReadOptions) -> list[Queue]:
    """Find the queues that the options select, by directory and name.

    Raises:
        FileNotFoundError: a directory does not exist.
        OSError: a file or directory cannot be read.
    """
    queues: list[Queue] = []
    for node, directory in find_directories(options):
        if options.origin is Origin.ARCHIVE:
            directory = directory.child(ARCHIVE_DIRECTORY)
            if not directory.exists():
                continue
        queues += _Listing(directory, node, options).queues()
    return queues


def find_directories(options: ReadOptions) -> list[tuple[str, Directory]]:
    """Find the data directories that the paths stand for, each with the name of its node.

    Raises:
        FileNotFoundError: a directory does not exist.
        OSError: a directory cannot be read.
    """
    directories = {each.name: each for each in _expand_all(options)}
    data_paths = list(directories)
    nodes = [options.node] * len(data_paths) if options.node else node_names(data_paths)
    for name, directory in directories.items():
        if not directory.exists():
            raise FileNotFoundError(f"no such data directory: {name}")
    return list(zip(nodes, directories.values(), strict=True))


def _expand_all(options: ReadOptions) -> Iterator[Directory]:
    for path in options.paths:
        found = expand(path, options.store)
        if not found:
            raise FileNotFoundError(
                f"no data directory matches {split_uri(path, options.store)[0]}"
            )
        yield from found


def node_names(paths: list[str]) -> list[str]:
    """Name each directory by its last part, or, if that is not unique, by the parts that differ."""
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
    """Keep the part of a queue that was there at both looks, with a listing between them.

    Segments behind the newer read position were not deleted yet when the files were listed, and
    records before the older write position were synced by then. A queue without metadata was
    emptied.
    """
    end = older.write_file, older.write_pos
    start = end if newer is None else min((newer.read_file, newer.read_pos), end)
    return layout.Metadata(older.depth, *start, *end)


class _Listing:
    """The queues of one directory, read in the order that the module's docstring gives."""

    def __init__(self, directory: Directory, node: str, options: ReadOptions) -> None:
        self._directory = directory
        self._node = node
        self._options = options
        # Names of queues that have a file with their generation.
        self._with_generation: set[str] = set()

    def queues(self) -> list[Queue]:
        """Read names, metadata, sizes and finished records.

        Raises:
            OSError: a file or the directory cannot be read.
        """
        names = self._selected(self._directory.list_files())
        place = self._directory.name
        queues = [
            Queue(self._node, place, name, store=self._directory.store) for name in sorted(names)
        ]
        self._read_metadata(queues)
        self._read_finished(self._read_sizes(queues))
        self._read_identities(queues)
        if self._options.origin is Origin.ARCHIVE and self._options.has_times:
            self._read_first_times(queues)
        holed = [queue for queue in queues if queue.missing_segments()]
        before = [queue.metadata for queue in holed]
        self._read_metadata(holed)
        for queue, older in zip(holed, before, strict=True):
            assert older is not None  # else nothing could be missing
            queue.metadata = _join(older, queue.metadata)
        return queues

    def _read_identities(self, queues: list[Queue]) -> None:
        """Add the id of the node and the generation of each queue, where nsqd gave them."""
        node_id = read_node_id(self._directory, self._options)
        for queue in queues:
            queue.node_id = node_id
            if queue.name in self._with_generation:
                found = _read_generation_file(self._directory, queue.name)
                if found is not None:
                    queue.generation, queue.last_deleted = found

    def _read_first_times(self, queues: list[Queue]) -> None:
        """Add the time of each segment's first record, so that others are left out unread."""

        def read(queue: Queue, number: int) -> None:
            start = self._directory.read_start(queue.file_name(number), _FIRST_TIME.size)
            if start is not None and len(start) == _FIRST_TIME.size:
                queue.first_ns[number] = _FIRST_TIME.unpack(start)[1]

        places = [(queue, number) for queue in queues for number in queue.sizes]
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            list(pool.map(lambda place: read(*place), places))

    def _read_finished(self, queues: list[Queue]) -> None:
        """Add the finished records of queues that have a sidecar file."""
        for queue in queues:
            if queue.metadata is not None:
                found = _read_finished_records(
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
        """List the segments; return the queues that have a sidecar of finished records."""
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
        self._with_generation = {name for name in by_name if f"{name}{_GENERATION_ENDING}" in files}
        ending = layout.finished_path("", "")[1:]
        return [queue for queue in queues if f"{queue.name}{ending}" in files]


def read_generation(directory: Directory, name: str) -> str | None:
    """Return the generation of a queue, None if it has none.

    Raises:
        OSError: the file cannot be read.
    """
    found = _read_generation_file(directory, name)
    return None if found is None else found[0]


def _read_generation_file(directory: Directory, name: str) -> tuple[str, Deleted | None] | None:
    text = directory.read_start(f"{name}{_GENERATION_ENDING}", MAX_FILE_BYTES)
    return None if text is None else parse_generation(text)


def read_node_id(directory: Directory, options: ReadOptions) -> str | None:
    """Return the id of the nsqd that a directory, or its archive, belongs to; None without one.

    Raises:
        OSError: the file cannot be read.
    """
    if options.origin is not Origin.ARCHIVE:
        return _read_identity(directory, NODE_FILE)
    found = _read_identity(directory.parent(), NODE_FILE)
    return found and f"{found}/{ARCHIVE_DIRECTORY}"


def _read_identity(directory: Directory, file_name: str) -> str | None:
    text = directory.read_start(file_name, _MAX_METADATA_BYTES)
    match = None if text is None else _IDENTITY.match(text)
    return None if match is None else match[0].decode()


def _read_finished_records(
    directory: Directory, name: str, metadata: layout.Metadata, sizes: dict[int, int]
) -> FinishedRecords:
    """Read a queue's sidecar; without proof, and in a remote directory, no record is finished."""
    path = directory.find_local_path()
    if path is None:
        return NOTHING_FINISHED
    read = sidecar.Position(metadata.read_file, metadata.read_pos)
    try:
        evidence = sidecar.examine(path, name, read, sizes)
    except FileNotFoundError:
        return NOTHING_FINISHED  # consumed meanwhile
    if evidence is None:
        return NOTHING_FINISHED
    for doubt in evidence.doubts:
        _logger.warning("finished records not believed path=%s/%s %s", path, name, doubt)
    found = evidence.find_records()
    bounds = {
        segment: np.array([entry[:2] for entry in records], np.int64).tobytes()
        for segment, records in found.items()
        if records
    }
    gaps = tuple(range(gap.start, gap.end) for gap in evidence.gaps)
    number, offset = evidence.read
    return FinishedRecords(
        bounds,
        gaps,
        (number, offset),
        record_count=sum(records.count for records in found.values()),
        byte_count=sum(records.width for records in found.values()),
    )


def _queue_name(file_name: str) -> str | None:
    """Return the queue of a segment, a quarantined segment or a metadata file; None for others."""
    parsed = _parse_segment_name(file_name)
    if parsed is not None:
        return parsed[0]
    # A metadata file has its queue's name in front of a fixed ending.
    ending = layout.metadata_path("", "")[1:]
    return (file_name.removesuffix(ending) or None) if file_name.endswith(ending) else None


def _parse_segment_name(file_name: str) -> tuple[str, int, bool] | None:
    """Parse the queue and the number of a segment, and whether it is quarantined.

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
