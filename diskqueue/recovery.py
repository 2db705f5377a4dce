"""The start of a queue: which segments have records to deliver, and where writing goes on.

The metadata file is believed if it can be read and if its read position is not beyond its write
position. It is then compared with the files, and no file is ever overwritten:

* the last segment is longer than WRITE_POS (the daemon was killed after its last sync), or there
  are segments behind it: those records are delivered, and writing starts in a new segment;
* the last segment is shorter than WRITE_POS, or missing: writing starts in a new segment, since
  writing on would leave a hole that later reads as damage;
* segments are missing: they are skipped, with a warning unless the sidecar says that they were
  deleted before older ones;
* segments before READ_FILE (killed between the metadata and the deletion) are removed.

The sidecar (`sidecar`) tells which records behind the read position need not be delivered again,
as far as it can be believed. If it is newer than the metadata (killed between the two), its read
position counts.

Without usable metadata all segments that exist are delivered, and writing starts behind them;
segments that are missing between them are not reported again.

The bytes behind the known write position are in *doubt*: a power cut may have left their length and
not all of them, which matters where they have no checksum (`reader`). `DiskQueue` writes that into
the checksum file, for a crash before they are read, since a sync moves the write position on.

`DiskQueue` owns the states that `recover` returns; this module has none.
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from diskqueue import layout
from diskqueue.checksums.file import drop_stale
from diskqueue.errors import CorruptMetadataError
from diskqueue.finished import sidecar
from diskqueue.finished.intervals import Intervals
from diskqueue.segment import RecordLimits, SegmentState, walk

# Segments behind the last known one are consecutive, unless a power cut took some.
_MAX_MISSING_COUNT = 8
# Records whose number no metadata tells are counted in about this many bytes and estimated beyond,
# so that a huge backlog does not delay the start. 64 MiB take some 50 ms.
_COUNT_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Recovered:
    """The state a queue starts from."""

    read_segment: SegmentState
    read_pos: int
    write_segment: SegmentState
    depth: int
    consumed: list[SegmentState]  # leftovers to delete
    durable_text: bytes | None  # the metadata on disk, if it was usable
    has_sidecar: bool  # whether believed or not
    blocks: list[sidecar.Block] = field(default_factory=list)  # in the order of the records
    gaps: Intervals = field(default_factory=Intervals)  # numbers of segments


def recover(
    directory: str,
    name: str,
    limits: RecordLimits,
    logger: logging.Logger,
    files: layout.QueueFiles | None,
) -> Recovered:
    """Read metadata and segments of a queue; change no file, but remove stale ones.

    Args:
        files: the files of the queue, if the caller has listed the directory; listing it for each
            of thousands of queues would take quadratic time.

    Raises:
        OSError: a file cannot be read, or the directory does not exist.
    """
    if files is None:
        files = layout.find_queue_files(directory, name)
    _remove_orphans(directory, files)
    metadata = _read_usable_metadata(directory, name, logger) if files.has_metadata else None
    if metadata is None:
        found = _recover_by_scan(directory, files, limits, logger)
    else:
        sizes = _find_reachable(files.segments, metadata)
        comparison = _Comparison(directory, name, metadata, sizes, limits, logger)
        if files.has_finished:
            comparison.load_sidecar()
        found = comparison.result()
    if files.checksums:
        _note_checksums(found, files.checksums)
        last = found.write_segment
        if last.exists and last.has_checksum_file:
            path = layout.segment_path(directory, name, last.number)
            drop_stale(path, name, last.number, last.end)
    return found


def _note_checksums(found: Recovered, numbers: Set[int]) -> None:
    for consumed in found.consumed:
        consumed.has_checksum_file = consumed.number in numbers
    segment: SegmentState | None = found.read_segment
    while segment is not None:
        segment.has_checksum_file = segment.number in numbers
        segment = segment.next


def _remove_orphans(directory: str, files: layout.QueueFiles) -> None:
    """Remove the checksums of segments that are gone: go-diskqueue leaves them."""
    for number in files.checksums - files.segments.keys():
        path = layout.checksum_path(layout.segment_path(directory, files.name, number))
        # At the latest when a segment gets this number they are removed.
        with contextlib.suppress(OSError):
            os.unlink(path)


def _read_usable_metadata(
    directory: str, name: str, logger: logging.Logger
) -> layout.Metadata | None:
    try:
        metadata = layout.read_metadata(directory, name)
    except CorruptMetadataError as error:
        logger.warning("diskqueue metadata unusable queue=%s error=%s", name, error)
        return None
    if metadata is not None and not metadata.is_sane:
        logger.warning(
            "diskqueue metadata unusable queue=%s error=read position beyond write position %s",
            name,
            metadata,
        )
        return None
    return metadata


def _recover_by_scan(
    directory: str, files: layout.QueueFiles, limits: RecordLimits, logger: logging.Logger
) -> Recovered:
    name = files.name
    for path in files.temporary_files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    states = [SegmentState(number, size, exists=True) for number, size in files.segments.items()]
    # Whether these were deleted before older ones or are lost cannot be told any more. It is logged
    # here, once.
    gaps = Intervals()
    if states:
        everything = Intervals.of_span(states[0].number, states[-1].number + 1)
        gaps = everything.minus(Intervals.of_numbers(files.segments))
    if states:
        logger.warning(
            "diskqueue recovered without metadata queue=%s segments=%d missing=%d",
            name,
            len(states),
            gaps.count,
        )
    for state in states:
        state.doubt = (0, state.end)
    if not states:
        states = [SegmentState(0)]
    elif states[-1].end > 0:
        states.append(SegmentState(states[-1].number + 1))
    _link(states)
    return Recovered(
        read_segment=states[0],
        read_pos=0,
        write_segment=states[-1],
        depth=_count_records(directory, name, ((state, 0) for state in states[:-1]), limits),
        consumed=[],
        durable_text=None,
        has_sidecar=files.has_finished,
        gaps=gaps,
    )


def _find_reachable(segments: Mapping[int, int], metadata: layout.Metadata) -> dict[int, int]:
    """Return the segments that belong to the queue: those around its positions.

    A file far from them is a stray, as one that an operator has put there, or that stayed when a
    topic was deleted: it is neither delivered nor deleted.
    """
    first, last = metadata.read_file, metadata.write_file
    while first - 1 in segments:
        first -= 1
    reachable: dict[int, int] = {}
    for number, size in segments.items():
        if first <= number <= last + _MAX_MISSING_COUNT:
            reachable[number] = size
            last = max(last, number)
    return reachable


class _Comparison:
    """The metadata of a queue against the segments in its directory."""

    def __init__(
        self,
        directory: str,
        name: str,
        metadata: layout.Metadata,
        sizes: dict[int, int],
        limits: RecordLimits,
        logger: logging.Logger,
    ) -> None:
        self._directory = directory
        self._name = name
        self._metadata = metadata
        self._limits = limits
        self._logger = logger
        self._sizes = sizes
        self._durable_text = layout.format_metadata(metadata)
        self._evidence: sidecar.Evidence | None = None
        # Segments that the last sync deleted before older ones; it may have left some of them.
        self._gaps = Intervals()

    def load_sidecar(self) -> None:
        """Read which records behind the read position are finished, as far as that is proven.

        Raises:
            OSError: a file cannot be read.
        """
        metadata = self._metadata
        read = sidecar.Position(metadata.read_file, metadata.read_pos)
        found = sidecar.examine(self._directory, self._name, read, self._sizes)
        self._evidence = found
        if found is None:
            return
        for doubt in found.doubts:
            self._logger.warning(
                "diskqueue finished records will be delivered again queue=%s reason=%s",
                self._name,
                doubt,
            )
        if found.read > read:
            self._move_read_position(found.read)
        self._gaps = found.gaps.minus(Intervals.of_numbers(self._sizes))

    def _move_read_position(self, read: sidecar.Position) -> None:
        """Put the read position where the sync was about to put it when the daemon was killed."""
        metadata = self._metadata
        count = 0
        for number in self._sizes:
            if metadata.read_file <= number <= read.number:
                start = metadata.read_pos if number == metadata.read_file else 0
                end = read.offset if number == read.number else self._sizes[number]
                path = layout.segment_path(self._directory, self._name, number)
                count += walk(path, start, max(start, end), self._limits).record_count
        self._metadata = replace(
            metadata, depth=metadata.depth - count, read_file=read.number, read_pos=read.offset
        )

    def result(self) -> Recovered:
        """Link the segments, and count the records to deliver.

        Raises:
            OSError: a file cannot be read.
        """
        metadata = self._metadata
        consumed = [
            SegmentState(number, size, exists=True)
            for number, size in self._sizes.items()
            if number < metadata.read_file
        ]
        states = [
            SegmentState(number, size, exists=True)
            for number, size in self._sizes.items()
            if number >= metadata.read_file
        ]
        self._report_missing(states)
        stale = self._find_stale(states)
        write_segment = self._choose_write_segment(states)
        if not states or states[-1] is not write_segment:
            states.append(write_segment)
        _link(states)

        read_pos = metadata.read_pos if states[0].number == metadata.read_file else 0
        if states[0] is not write_segment and read_pos > states[0].end:
            # The file has no byte left behind the read position. It is set aside, not deleted, for
            # an operator who looks for the cause.
            states[0].damage = "the file is shorter than the read position"
            read_pos = states[0].end
        depth = metadata.depth + _count_records(self._directory, self._name, stale, self._limits)
        depth -= self._assign_finished(states)
        return Recovered(
            read_segment=states[0],
            read_pos=read_pos,
            write_segment=write_segment,
            depth=depth,
            consumed=consumed,
            durable_text=self._durable_text,
            has_sidecar=self._evidence is not None,
            blocks=self._evidence.blocks if self._evidence else [],
            gaps=self._gaps,
        )

    def _assign_finished(self, states: list[SegmentState]) -> int:
        """Give each segment its finished records; return how many the metadata counts.

        It does not count those of a segment that was about to be deleted.
        """
        if self._evidence is None:
            return 0
        by_number = self._evidence.find_records()
        for state in states:
            state.finished = by_number.get(state.number, state.finished)
        return sum(
            records.count
            for number, records in by_number.items()
            if number not in self._evidence.gaps
        )

    def _report_missing(self, states: list[SegmentState]) -> None:
        metadata = self._metadata
        stop = metadata.write_file + (metadata.write_pos > 0)
        if sum(state.number < stop for state in states) == stop - metadata.read_file:
            return  # as in almost all of thousands of queues
        expected = Intervals.of_span(metadata.read_file, stop)
        found = Intervals.of_numbers(state.number for state in states if state.number < stop)
        is_drained = (metadata.read_file, metadata.read_pos) == (
            metadata.write_file,
            metadata.write_pos,
        )
        if expected.minus(found).minus(self._gaps) and not is_drained:
            self._logger.warning(
                "diskqueue segments missing, skipped queue=%s expected=%d found=%d",
                self._name,
                expected.count,
                found.count,
            )

    def _find_stale(self, states: list[SegmentState]) -> list[tuple[SegmentState, int]]:
        """Return the regions written after the metadata: a segment, and where in it they begin."""
        metadata = self._metadata
        stale = [(state, 0) for state in states if state.number > metadata.write_file]
        for state in states:
            if state.number == metadata.write_file and state.end > metadata.write_pos:
                stale.insert(0, (state, metadata.write_pos))
        for state, start in stale:
            state.doubt = (start, state.end)
        if stale:
            self._logger.warning(
                "diskqueue metadata older than the segments, recovering queue=%s"
                " metadata=%d,%d file=%d size=%d",
                self._name,
                metadata.write_file,
                metadata.write_pos,
                stale[-1][0].number,
                stale[-1][0].end,
            )
        return stale

    def _choose_write_segment(self, states: list[SegmentState]) -> SegmentState:
        """Choose where the next record goes: behind all segments that exist, never into a hole."""
        metadata = self._metadata
        last = states[-1] if states else None
        if last is None or last.number < metadata.write_file:
            # The segment is missing. At position 0 it was never made, and its number is free.
            is_unused = metadata.write_pos == 0
            return SegmentState(metadata.write_file + (0 if is_unused else 1))
        if last.number == metadata.write_file and last.end == metadata.write_pos:
            return last
        if last.number == metadata.write_file and last.end < metadata.write_pos:
            self._logger.warning(
                "diskqueue segment shorter than the write position, data lost"
                " queue=%s file=%d size=%d write_pos=%d",
                self._name,
                last.number,
                last.end,
                metadata.write_pos,
            )
        if last.number > metadata.write_file and last.end == 0:
            return last  # Made for a write that failed.
        return SegmentState(last.number + 1)


def _link(states: list[SegmentState]) -> None:
    for older, newer in itertools.pairwise(states):
        older.next = newer


def _count_records(
    directory: str,
    name: str,
    regions: Iterable[tuple[SegmentState, int]],
    limits: RecordLimits,
) -> int:
    """Count the records between each offset and the end of its segment, or estimate them."""
    count = counted_bytes = uncounted_bytes = 0
    for state, start in regions:
        if counted_bytes >= _COUNT_BYTES:
            uncounted_bytes += state.end - start
            continue
        result = walk(layout.segment_path(directory, name, state.number), start, state.end, limits)
        count += result.record_count
        counted_bytes += state.end - start
    if uncounted_bytes and count:
        count += uncounted_bytes * count // counted_bytes
    return count
