"""Compares the records in the files of a queue with its metadata, for `python -m diskqueue check`.

Only reads, takes no locks, and may look at the directory of a running daemon: then the metadata is
a little older than the segments, which is a note and no damage.
"""

import os
from dataclasses import dataclass, field

from diskqueue import layout, segment
from diskqueue.checksums.audit import audit
from diskqueue.errors import CorruptMetadataError
from diskqueue.finished import sidecar
from diskqueue.finished.intervals import Intervals


@dataclass(slots=True)
class QueueReport:
    """The state of one queue. Damage means that records are lost or will be set aside."""

    name: str
    metadata: layout.Metadata | None = None
    segment_count: int = 0
    segment_bytes: int = 0
    # Records from the read position on, as far as they are whole.
    record_count: int = 0
    # Those of them that will not be delivered again.
    finished_count: int = 0
    # Whether any segment has a checksum file.
    has_checksums: bool = False
    bad_files: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_queue(directory: str, files: layout.QueueFiles) -> QueueReport:
    """Walk through all segments of a queue that its next start would read.

    Raises:
        OSError: a file cannot be read.
    """
    report = QueueReport(
        files.name,
        segment_count=len(files.segments),
        segment_bytes=sum(files.segments.values()),
        has_checksums=bool(files.checksums),
        bad_files=files.bad_files,
    )
    report.metadata = _read_metadata(directory, files, report)
    metadata = report.metadata
    recorded_count = 0
    for number in files.segments:
        if metadata is not None and number < metadata.read_file:
            report.notes.append(f"segment {number} is consumed and not deleted yet")
            continue
        try:
            recorded_count += _check_segment(directory, number, report)
        except FileNotFoundError:
            report.notes.append(f"segment {number} was consumed meanwhile")
    if metadata is not None:
        gaps = _check_sidecar(directory, files, metadata, report)
        _compare(metadata, files, recorded_count, gaps, report)
    return report


def _check_sidecar(
    directory: str, files: layout.QueueFiles, metadata: layout.Metadata, report: QueueReport
) -> Intervals:
    """Count the finished records; return the numbers of segments that may have been deleted."""
    read = sidecar.Position(metadata.read_file, metadata.read_pos)
    try:
        found = sidecar.examine(directory, files.name, read, files.segments)
    except FileNotFoundError:
        report.notes.append("a segment was consumed meanwhile")
        return Intervals()
    if found is None:
        return Intervals()
    for doubt in found.doubts:
        report.notes.append(f"finished records would be delivered again: {doubt}")
    if found.read > read:
        number, offset = found.read
        report.notes.append(f"a start goes on at {number},{offset}: the metadata was not written")
    report.finished_count = sum(records.count for records in found.find_records().values())
    present = Intervals.of_numbers(files.segments)
    for gap in found.gaps:
        count = Intervals([gap]).minus(present).count
        if count:
            report.notes.append(f"{count} segments are consumed, though older ones are not")
    # Segments that a start passes over may be deleted; this sidecar does not have their gaps.
    return found.gaps.union(Intervals.of_span(read.number, found.read.number))


def _check_segment(directory: str, number: int, report: QueueReport) -> int:
    """Walk through one segment; return how many of its records the metadata counts."""
    metadata = report.metadata
    path = layout.segment_path(directory, report.name, number)
    size = os.stat(path).st_size
    known_end = size
    if metadata is not None and number >= metadata.write_file:
        known_end = min(size, metadata.write_pos) if number == metadata.write_file else 0
    start = metadata.read_pos if metadata is not None and number == metadata.read_file else 0
    known = segment.walk(path, start, max(start, known_end))
    report.record_count += known.record_count
    if known.damage is not None:
        report.damage.append(_describe(number, known))
    elif known_end < size:
        _add_news(path, number, known_end, report)
    _check_checksums(path, number, min(start, size), report)
    return known.record_count


def _check_checksums(path: str, number: int, start: int, report: QueueReport) -> None:
    """Compare a segment with its checksum file, if there is one."""
    found = audit(path, start)
    for part in found.denied:
        report.damage.append(
            f"segment {number} at offset {part.start}: the checksum is wrong"
            f" ({part.end - part.start} bytes, {part.record_count} records)"
        )
    if found.repaired_count:
        report.damage.append(
            f"segment {number}: {found.repaired_count} lengths are wrong, and known by checksums"
        )
    if found.is_foreign:
        report.damage.append(f"segment {number}: the checksum file is that of other records")
    elif found.garbage_bytes:
        report.damage.append(
            f"segment {number}: {found.garbage_bytes} bytes of the checksum file are damaged"
        )
    if found.tail_bytes:
        report.notes.append(
            f"segment {number}: the checksum file ends with {found.tail_bytes} bytes that are no"
            " entry, as after a crash"
        )
    if found.missing_bytes and not found.is_foreign:
        report.notes.append(
            f"segment {number}: {found.missing_bytes} bytes are missing that have a checksum: they"
            " were not synced, or cut off"
        )
    if found.repeated_count:
        report.notes.append(
            f"segment {number}: {found.repeated_count} places have more than one checksum, as after"
            " a power cut"
        )
    if found.has_file and found.uncovered_bytes and not found.is_foreign:
        report.notes.append(
            f"segment {number}: {found.uncovered_bytes} bytes have no checksum: another nsqd has"
            " written them, or checksums were off, or their file is damaged"
        )
    elif not found.has_file and os.path.getsize(path) > start and report.has_checksums:
        report.notes.append(f"segment {number} has no checksum file")


def _read_metadata(
    directory: str, files: layout.QueueFiles, report: QueueReport
) -> layout.Metadata | None:
    try:
        metadata = layout.read_metadata(directory, files.name)
    except CorruptMetadataError as error:
        report.damage.append(f"metadata: {error}")
        return None
    if metadata is None:
        if files.segments:
            report.notes.append("no metadata: a start delivers every segment from its beginning")
    elif not metadata.is_sane:
        report.damage.append("metadata: the read position is beyond the write position")
        return None
    return metadata


def _add_news(path: str, number: int, start: int, report: QueueReport) -> None:
    """Look at the records that were written after the metadata."""
    news = segment.walk(path, start)
    report.record_count += news.record_count
    report.notes.append(f"segment {number} has {news.record_count} records after the metadata")
    if news.damage is None:
        return
    if news.damage.is_torn:
        # No sync has covered this record: it is being written, or a crash cut it off.
        report.notes.append(_describe(number, news))
    else:
        report.damage.append(_describe(number, news))


def _describe(number: int, walk: segment.Walk) -> str:
    assert walk.damage is not None
    return f"segment {number} at offset {walk.end}: {walk.damage.reason}"


def _compare(
    metadata: layout.Metadata,
    files: layout.QueueFiles,
    recorded_count: int,
    gaps: Intervals,
    report: QueueReport,
) -> None:
    is_drained = (metadata.read_file, metadata.read_pos) == (
        metadata.write_file,
        metadata.write_pos,
    )
    if is_drained:
        return
    # At position 0 the last segment need not exist.
    stop = metadata.write_file + (1 if metadata.write_pos > 0 else 0)
    expected = Intervals.of_span(metadata.read_file, stop)
    missing = expected.minus(Intervals.of_numbers(files.segments)).minus(gaps)
    if missing:
        report.damage.append(f"{missing.count} segments are missing")
    for number, position in (
        (metadata.read_file, metadata.read_pos),
        (metadata.write_file, metadata.write_pos),
    ):
        if files.segments.get(number, position) < position:
            report.damage.append(f"segment {number} is shorter than position {position}")
    if recorded_count != metadata.depth:
        report.notes.append(f"depth {metadata.depth} in the metadata, but {recorded_count} records")
