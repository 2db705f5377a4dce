"""Slices of segments, read on an executor.

A slice is coordinates: of a file in a directory, or of one that a node serves. It is read in
windows of a few MiB into one buffer that is used again and again, so a task's memory does not
depend on the size of its segments (a map of the file would count as memory, and kill the process if
the file were cut short). Each window becomes one batch.
"""

import logging
import mmap
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from diskqueue.layout import join_queue_name
from diskqueue.salvage import find_spans
from diskqueue.segment import PREFIX, PREFIX_BYTES, Damage, RecordLimits, find_damage
from spark_jobs.object_store import AMBIENT, StoreSettings
from spark_jobs.read.columns import DAMAGE_COLUMN, Constants
from spark_jobs.read.files.checksums import (
    NOTHING_WRONG,
    REASON,
    Checksums,
    Findings,
    fetch_checksums,
    find_checksums,
)
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.files.due import DueTimes
from spark_jobs.read.files.identity import find_generation, is_still
from spark_jobs.read.files.records import Offsets, Records, damage_batch, find_records
from spark_jobs.read.fleet.client import NodeError, RefusedError
from spark_jobs.read.fleet.remote_file import RemoteFile, read_whole
from spark_jobs.read.options import Mode, Origin, ReadOptions
from spark_jobs.read.skipped import SkipTeller

# Small enough for the cache of the CPU; 1 to 16 MiB are equally fast, 64 is not.
WINDOW_BYTES = 4 * 1024 * 1024
# So many salvaged records go into one batch.
_SALVAGE_RECORDS = 8192

_logger = logging.getLogger(__name__)


class SegmentLostError(Exception):
    """Raised when a segment is gone that was there when the job was planned."""


class DamagedSegmentError(Exception):
    """Raised at damage when mode=FAILFAST; its text names the file and the offset."""


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """A part of one file, from record to record; of a `.bad` file always the whole."""

    directory: str
    file_name: str
    start: int
    end: int  # never past the synced write position, unless that was asked for
    constants: Constants
    # Ranges of records to leave out, as `FinishedRecords.bounds` has them.
    finished: bytes = b""
    # Which queue it must be, for streams: one with the same name may have taken its place.
    identity: str = ""
    # Of a snapshot: the lease under which to read, and the file with the due times.
    lease: str = ""
    due: DueTimes | None = None
    # How to reach the directory.
    store: StoreSettings = AMBIENT

    @property
    def is_remote(self) -> bool:
        """Whether a running nsqd serves the file."""
        return self.directory.startswith(("http://", "https://"))

    @property
    def path(self) -> str:
        """The name of the file for messages to people."""
        return f"{self.directory.rstrip('/')}/{self.file_name}"

    @property
    def queue_name(self) -> str:
        """The name of the queue, as in the names of its files."""
        return join_queue_name(self.constants.topic, self.constants.channel)


@dataclass(frozen=True)
class MessagePartition(InputPartition):
    """The slices whose messages one task reads."""

    slices: tuple[SegmentSlice, ...]
    # Where to tell the damage that is skipped, for streams.
    tally: str = ""

    def read(self, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Read the messages, see `read_batches`."""
        with closing(SkipTeller(self.tally)) as teller:
            yield from read_batches(self.slices, schema, options, teller)


@dataclass(frozen=True)
class DamagePartition(InputPartition):
    """Places that planning found to be unreadable, as rows among the messages."""

    places: tuple[tuple[Constants, str], ...]

    def read(self, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Make a row of each place."""
        for constants, text in self.places:
            yield damage_batch(schema, constants, 0, text)


@dataclass(frozen=True, slots=True)
class Corruption:
    """Bytes of a segment that are no record."""

    kind: str  # "torn", "damaged", "denied", "lost" (in a `.bad` file) or "unreachable" (its node)
    slice: SegmentSlice
    offset: int
    byte_count: int
    reason: str


def read_batches(
    slices: tuple[SegmentSlice, ...],
    schema: pa.Schema,
    options: ReadOptions,
    teller: SkipTeller | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the messages of the slices, in order.

    Raises:
        SegmentLostError: a segment was consumed meanwhile.
        DamagedSegmentError: damage was met in mode FAILFAST.
        OSError: a file cannot be read.
    """
    is_bounded = options.since_ns is not None or options.until_ns is not None
    needs_due = "due" in schema.names or "state" in schema.names
    for found, each in _scan(slices, options, needs_due=needs_due):
        if isinstance(found, Corruption):
            if options.mode is Mode.FAILFAST:
                raise DamagedSegmentError(_describe(found))
            if teller is not None:
                teller.tell(each.path, found.offset, found.byte_count)
            if DAMAGE_COLUMN in schema.names:
                text = f"{found.kind}: {_describe(found)}"
                yield damage_batch(schema, each.constants, found.offset, text)
            else:
                _logger.warning("damage skipped %s", _describe(found))
            continue
        if each.finished:
            found.drop_within(np.frombuffer(each.finished, np.int64))
        if is_bounded:
            found.keep_between(options.since_ns, options.until_ns)
        if len(found):
            yield found.batch(schema, each.constants)


def find_corruptions(
    slices: tuple[SegmentSlice, ...], options: ReadOptions
) -> Iterator[Corruption]:
    """Find the damage in the slices, in order.

    Raises:
        SegmentLostError: a segment was consumed meanwhile.
        OSError: a file cannot be read.
    """
    for found, _ in _scan(slices, options):
        if isinstance(found, Corruption):
            yield found


def count_records(
    each: SegmentSlice, max_records: int, options: ReadOptions
) -> tuple[int, int | None]:
    """Count the records of a slice, up to max_records; return the count and its end.

    The end is the offset behind the last counted record, None if the slice has no more.

    Raises:
        SegmentLostError: the segment was consumed meanwhile.
        OSError: the file cannot be read.
    """
    count = 0
    for found, _ in _scan((each,), options):
        if isinstance(found, Corruption):
            continue
        if count + len(found) > max_records:
            return max_records, found.file_offset(max_records - count)
        count += len(found)
    return count, None


def find_time(each: SegmentSlice, time_ns: int, options: ReadOptions) -> int | None:
    """Return the offset of the first record of a slice that is not older than a time.

    Raises:
        SegmentLostError: the segment was consumed meanwhile.
        OSError: the file cannot be read.
    """
    for found, _ in _scan((each,), options):
        if not isinstance(found, Corruption):
            found.keep_between(time_ns, None)
            if len(found):
                return found.first_kept_offset()
    return None


def find_splits(
    each: SegmentSlice, split_bytes: int, options: ReadOptions
) -> Iterator[SegmentSlice]:
    """Cut a slice between records into parts of about split_bytes, together the whole of it.

    Raises:
        SegmentLostError: the segment was consumed meanwhile.
        OSError: the file cannot be read.
    """
    start = each.start
    target = start + split_bytes
    for found, _ in _scan((each,), options):
        if isinstance(found, Corruption):
            continue
        for offset in found.file_offsets_past(target, split_bytes):
            # A record may be larger than that, and be the first behind several targets.
            if offset > start:
                yield replace(each, start=start, end=offset)
                start = offset
            target += split_bytes
    yield replace(each, start=start)


def _scan(
    slices: tuple[SegmentSlice, ...], options: ReadOptions, *, needs_due: bool = False
) -> Iterator[tuple[Records | Corruption, SegmentSlice]]:
    buffer = bytearray(WINDOW_BYTES)
    for each in slices:
        for found in _scan_slice(each, buffer, options, needs_due=needs_due):
            yield found, each


def _scan_slice(
    each: SegmentSlice, buffer: bytearray, options: ReadOptions, *, needs_due: bool
) -> Iterator[Records | Corruption]:
    position = each.start
    try:
        if each.is_remote:
            scanned = _scan_remote(each, buffer, options, needs_due=needs_due)
        else:
            scanned = _scan_local(each, buffer, options)
        for found in scanned:
            if isinstance(found, Records):
                position = found.file_end
            yield found
    except FileNotFoundError:
        _report_lost(each, _CONSUMED, fails=options.fails_on_data_loss)
    except RefusedError as error:
        if error.status not in (404, 412):
            raise
        reason = f"is gone since this job was planned ({error}); let nsqd keep an archive"
        _report_lost(each, reason, fails=options.fails_on_data_loss)
        if each.lease:
            # Not consumed: the snapshot had it.
            yield _unreachable(each, position, error)
    except NodeError as error:
        if options.fails_on_data_loss or options.mode is Mode.FAILFAST or options.is_stream:
            raise
        yield _unreachable(each, position, error)


def _unreachable(each: SegmentSlice, position: int, error: NodeError) -> Corruption:
    return Corruption("unreachable", each, position, each.end - position, str(error))


def _scan_local(
    each: SegmentSlice, buffer: bytearray, options: ReadOptions
) -> Iterator[Records | Corruption]:
    directory = Directory(each.directory, each.store)
    if each.constants.is_bad:
        data = directory.read_whole(each.file_name)
        findings = NOTHING_WRONG
        if options.verifies_checksums:
            checksums = find_checksums(directory, each.file_name)
            if checksums is not None:
                findings = checksums.compare(partial(_read_part, data), 0, len(data))
        yield from _salvage(each, data, options.limits, findings)
        return
    with directory.open_file(each.file_name) as file:
        if each.identity and not is_still(directory, each.queue_name, each.identity):
            _report_lost(each, _CONSUMED, fails=options.fails_on_data_loss)
            return
        checksums = None
        if options.verifies_checksums:
            checksums = find_checksums(directory, each.file_name)
        yield from _walk(each, file, buffer, options.limits, checksums)


def _read_part(data: bytes | mmap.mmap, size: int, offset: int) -> bytes:
    return data[offset : offset + size]


def _walk(
    each: SegmentSlice,
    file: pa.NativeFile | RemoteFile,
    buffer: bytearray,
    limits: RecordLimits,
    checksums: Checksums | None,
) -> Iterator[Records | Corruption]:
    """Yield the records of a slice, but for those that its checksums deny."""
    walk = _Walk(each, file, buffer, limits)
    if checksums is None:
        yield from walk.records()
        return
    findings = checksums.compare(walk.read_at, each.start, walk.end)
    position = each.start
    for part in findings.denied:
        good = replace(each, start=position, end=part.start)
        yield from _Walk(good, file, buffer, limits, findings).records()
        yield Corruption("denied", each, part.start, part.end - part.start, REASON)
        position = part.end
    rest = replace(each, start=position)
    yield from _Walk(rest, file, buffer, limits, findings).records()


def _scan_remote(
    each: SegmentSlice, buffer: bytearray, options: ReadOptions, *, needs_due: bool
) -> Iterator[Records | Corruption]:
    fleet = options.fleet
    assert fleet is not None
    if each.lease:
        query = {"id": each.lease}
    else:
        origin = "archive" if options.origin is Origin.ARCHIVE else "queue"
        query = {"from": origin, "generation": find_generation(each.identity) or ""}
    due = None
    if needs_due and each.due is not None:
        times = read_whole(each.directory, each.due.file_name, query, each.due.byte_count, fleet)
        due = each.due.parse(times)
    with RemoteFile(each.directory, each.file_name, query, each.end, fleet) as file:
        checksums = None
        if options.verifies_checksums:
            checksums = fetch_checksums(each.directory, each.file_name, query, fleet)
        for found in _walk(each, file, buffer, options.limits, checksums):
            if due is not None and isinstance(found, Records):
                due.add_to(found)
            yield found


_CONSUMED = (
    "was consumed, deleted with its topic, or set aside as damaged, after this job was planned;"
    " read a copy of the directory"
)


def _report_lost(each: SegmentSlice, reason: str, *, fails: bool) -> None:
    if fails:
        raise SegmentLostError(
            f"segment {each.path} {reason}, or set failOnDataLoss=false to go on without it"
        )
    _logger.warning("segment gone, skipped path=%s %s", each.path, reason)


def _describe(found: Corruption) -> str:
    path = found.slice.path
    return f"{path} at offset {found.offset}: {found.reason} ({found.byte_count} bytes not read)"


_DAMAGE_TEXT = re.compile(
    r"(?P<kind>\w+): (?P<path>.*) at offset \d+: (?P<reason>.*) \((?P<bytes>\d+) bytes not read\)",
    re.DOTALL,
)


def parse_damage(text: str) -> tuple[str, str, str, int] | None:
    """Return kind, path, reason and bytes of a place that a scan has found, from `damage`.

    None for a place that planning had found already.
    """
    match = _DAMAGE_TEXT.fullmatch(text)
    if match is None:
        return None
    return match["kind"], match["path"], match["reason"], int(match["bytes"])


class _Walk:
    """A walk through the records of one slice."""

    def __init__(
        self,
        each: SegmentSlice,
        file: pa.NativeFile | RemoteFile,
        buffer: bytearray,
        limits: RecordLimits,
        findings: Findings = NOTHING_WRONG,
    ) -> None:
        self._slice = each
        self._file = file
        self._buffer = buffer
        self._limits = limits
        self._findings = findings
        # The file of a live queue only grows; a copy may have been cut short.
        self.end = min(each.end, file.size())

    def records(self) -> Iterator[Records | Corruption]:
        """Yield whole records up to the slice's end, or to damage before it and then the damage."""
        position = self._slice.start
        while position < self.end:
            size = self._read(self._buffer, position, min(len(self._buffer), self.end - position))
            offsets, end = find_records(self._buffer, size, self._limits)
            if len(offsets):
                yield Records(self._buffer, size, offsets, end, base=position)
            else:
                damage = find_damage(self.read_at, position, self.end, self._limits)
                if damage is not None:
                    yield self._corruption(damage, position)
                    return
                # Larger than the window, or than max-msg-size.
                record = self._read_record(position)
                end = len(record)
                yield Records(record, end, np.zeros(1, np.int64), end, base=position)
            position += end
        if self.end < self._slice.end:
            reason = f"the file ends at {self.end}, before its synced end"
            yield self._corruption(Damage(reason, is_torn=True), self.end)

    def _corruption(self, damage: Damage, position: int) -> Corruption:
        kind = "torn" if damage.is_torn else "damaged"
        return Corruption(kind, self._slice, position, self._slice.end - position, damage.reason)

    def _read_record(self, position: int) -> bytearray:
        (length,) = PREFIX.unpack(self.read_at(PREFIX_BYTES, position))
        record = bytearray(PREFIX_BYTES + length)
        if self._read(record, position, len(record)) < len(record):
            raise SegmentLostError(
                f"segment {self._slice.file_name} was cut short while it was read"
            )
        return record

    def read_at(self, size: int, position: int) -> bytes:
        """Read so many bytes at an offset; fewer only at the end of the file."""
        data = bytearray(size)
        return bytes(data[: self._read(data, position, size)])

    def _read(self, buffer: bytearray, position: int, size: int) -> int:
        """Fill the buffer's first `size` bytes; fewer only at the end of the file."""
        done = 0
        self._file.seek(position)
        with memoryview(buffer) as view:
            while done < size:
                count = self._file.readinto(view[done:size])
                if count == 0:
                    break
                done += count
            if self._findings.lengths:
                self._findings.repair(view[:done], position)
        return done


def _salvage(
    each: SegmentSlice,
    data: bytes | mmap.mmap,
    limits: RecordLimits,
    findings: Findings,
) -> Iterator[Records | Corruption]:
    """Yield the records of a `.bad` file, also those behind damage, and the bytes between them."""
    if findings.lengths:
        content = bytearray(data)
        with memoryview(content) as view:
            findings.repair(view, 0)
        data = bytes(content)
    records: list[bytes] = []
    offsets: list[int] = []
    for span in find_spans(data, limits.max_record_bytes):
        if any(part.start < span.end and span.start < part.end for part in findings.denied):
            yield Corruption("denied", each, span.start, span.end - span.start, REASON)
            continue
        if not span.is_kept:
            reason = "not a record; salvage went on behind it"
            yield Corruption("lost", each, span.start, span.end - span.start, reason)
            continue
        records.append(data[span.start : span.end])
        offsets.append(span.start)
        if len(records) >= _SALVAGE_RECORDS:
            yield _salvaged_records(records, offsets)
            records, offsets = [], []
    if records:
        yield _salvaged_records(records, offsets)


def _salvaged_records(records: list[bytes], file_offsets: list[int]) -> Records:
    data = bytearray().join(records)
    ends = np.cumsum([len(record) for record in records])
    starts: Offsets = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return Records(
        data, len(data), starts, len(data), base=0, file_offsets=np.array(file_offsets, np.int64)
    )
