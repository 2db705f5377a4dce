"""What lies in the data path: segments and metadata of a queue, and nsqd.dat.

An input for `queue` is the metadata's text, then the content of each segment, with MARK between.
Behind FINISHED, the text is followed by the sidecar that says which records are finished; its
checksum is made right, or nothing in it would ever be looked at.
"""

import logging
import os
import struct
import tempfile
import zlib
from pathlib import Path

from diskqueue import layout, segment
from diskqueue.errors import CorruptMetadataError, CorruptSegmentError
from diskqueue.queue import DiskQueue
from diskqueue.salvage import find_spans
from diskqueue.tools.check import check_queue
from nsqd.broker import metadata
from nsqd.broker.queue.due_log import DueLog
from nsqd.protocol.names import is_valid_topic_name

MARK = b"\xff\xfe--MARK--"
FINISHED = b"\xff\xfe--DONE--"
MAX_RECORD_BYTES = 1000
MIN_RECORD_BYTES = 26
MAX_SEGMENTS = 6
LIMITS = segment.RecordLimits(MIN_RECORD_BYTES, MAX_RECORD_BYTES)
NEW_RECORD = b"n" * 40
# Where files cost no disk.
MEMORY = Path("/dev/shm")

quiet = logging.getLogger("fuzz")
quiet.propagate = False
quiet.addHandler(logging.NullHandler())


def make_directory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


def plain_walk(content: bytes, position: int = 0) -> list[bytes]:
    """Return the records of a segment from a position on, up to the first that is none."""
    found = []
    while is_record(content, position):
        (length,) = struct.unpack_from(">i", content, position)
        found.append(content[position + 4 : position + 4 + length])
        position += 4 + length
    return found


def is_record(content: bytes, position: int) -> bool:
    """Whether a whole record is here: of a usual size, or one that ends where another begins."""
    while True:
        if position + 4 > len(content):
            return False
        (length,) = struct.unpack_from(">i", content, position)
        end = position + 4 + length
        if length < MIN_RECORD_BYTES or end > len(content):
            return False
        if length <= MAX_RECORD_BYTES or end == len(content):
            return True
        position = end


def check_segment(data: bytes) -> None:
    """All readers of one file find what the plain walk finds; salvaging leaves no byte out."""
    with make_directory() as directory:
        path = os.path.join(directory, "s")
        Path(path).write_bytes(data)
        expected = plain_walk(data)
        found = []
        position = 0
        try:
            for offset, payload in segment.iter_records(path, limits=LIMITS):
                assert offset == position
                position += 4 + len(payload)
                found.append(payload)
            end = len(data)
        except CorruptSegmentError as error:
            end = error.offset
        assert position == end
        assert found == expected
        walk = segment.walk(path, limits=LIMITS)
        assert (walk.record_count, walk.end) == (len(expected), position)
        assert (walk.damage is None) == (position == len(data))
    end = 0
    for span in find_spans(data, MAX_RECORD_BYTES):
        assert span.start == end < span.end
        end = span.end
        if span.is_kept:
            assert struct.unpack_from(">i", data, span.start)[0] == span.end - span.start - 4
    assert end == len(data)


def check_queue_files(data: bytes) -> None:
    """A queue gives the records of its files from the read position on, then works as any other."""
    head, *segments = data.split(MARK)[: MAX_SEGMENTS + 1]
    text, mark, sidecar = head.partition(FINISHED)
    with make_directory() as directory:
        if mark:
            checksum = zlib.crc32(sidecar[:-4]).to_bytes(4, "big")
            Path(f"{directory}/t.diskqueue.finished").write_bytes(sidecar[:-4] + checksum)
        if text:
            Path(layout.metadata_path(directory, "t")).write_bytes(text)
        for number, content in enumerate(segments):
            Path(layout.segment_path(directory, "t", number)).write_bytes(content)
        for files in layout.list_queues(directory).values():
            check_queue(directory, files)
        expected = expect_records(text, segments)

        queue = open_queue(directory)
        peeked = queue.peek(1 << 20, 1 << 20)
        found = consume(queue)
        assert peeked == found[: len(peeked)]
        if mark:
            # What is finished is passed over, and with it damage that would end the walk.
            assert are_in_order(found, segments)
        else:
            assert found == expected
        queue.put([NEW_RECORD])
        queue.sync()
        queue.close()

        again = open_queue(directory)
        assert consume(again) == [NEW_RECORD]
        again.close()


def are_in_order(found: list[bytes], segments: list[bytes]) -> bool:
    """Whether these stand in the segments as records, one behind the other."""
    number = position = 0
    for record in found:
        framed = struct.pack(">i", len(record)) + record
        while number < len(segments):
            position = segments[number].find(framed, position)
            if position >= 0:
                break
            number, position = number + 1, 0
        else:
            return False
        position += len(framed)
    return True


def expect_records(text: bytes, segments: list[bytes]) -> list[bytes]:
    """Return what the queue must deliver, by the rules of recovery."""
    read_file = read_pos = 0
    try:
        found = layout.parse_metadata(text) if text else None
    except CorruptMetadataError:
        found = None
    if found is not None and found.is_sane:
        read_file, read_pos = found.read_file, found.read_pos
    expected = []
    for number, content in enumerate(segments):
        if number >= read_file:
            expected += plain_walk(content, read_pos if number == read_file else 0)
    return expected


def open_queue(directory: str) -> DiskQueue:
    return DiskQueue(
        directory, "t", max_bytes_per_file=4096, max_record_bytes=MAX_RECORD_BYTES, logger=quiet
    )


def consume(queue: DiskQueue) -> list[bytes]:
    """Read and finish everything."""
    payloads: list[bytes] = []
    while (batch := queue.read(100, 1 << 16)) is not None:
        assert len(batch) > 0
        payloads += batch
        queue.commit(range(batch.first, batch.first + len(batch)))
    assert queue.depth == 0
    queue.sync()
    return payloads


def check_nsqd_dat(data: bytes) -> None:
    """nsqd.dat is understood or refused; what is written of it is read again as the same."""
    try:
        topics = metadata.decode(data)
    except ValueError:
        return
    for topic in topics:
        for name in (topic.name, *(f"{topic.name}:{channel.name}" for channel in topic.channels)):
            if all(map(is_valid_topic_name, name.split(":", 1))):
                path = layout.segment_path("/data", name, 0)
                assert os.path.dirname(os.path.normpath(path)) == "/data"
    assert metadata.decode(metadata.encode(topics, "1")) == topics


def check_due_log(data: bytes) -> None:
    """Only whole entries count, whatever is between them, and new ones are found behind them."""
    now_ns = 1_700_000_000 * 10**9
    with make_directory() as directory:
        Path(layout.due_path(directory, "t")).write_bytes(data)
        log = DueLog(directory, "t", now_ns)
        known = dict(log.unread)
        assert set(known) <= find_due_ids(data)
        log.add([b"a new message id"], now_ns + 10**9, now_ns, are_unread=True)
        log.close()

        again = DueLog(directory, "t", now_ns)
        assert set(known) - set(again.unread) <= {b"a new message id"}
        assert b"a new message id" in again.unread or find_latest(data) > now_ns
        again.close()


def find_due_ids(data: bytes) -> set[bytes]:
    """Return the ids of the entries that are whole."""
    entries = [data[place : place + 36] for place in range(0, len(data) - 35, 36)]
    return {
        entry[:16] for entry in entries if zlib.crc32(entry[:32]).to_bytes(4, "big") == entry[32:]
    }


def find_latest(data: bytes) -> int:
    """Return the latest time of writing; a clock that was set back moves all due times."""
    ids = find_due_ids(data)
    entries = [data[place : place + 36] for place in range(0, len(data) - 35, 36)]
    times = [struct.unpack_from(">q", entry, 16)[0] for entry in entries if entry[:16] in ids]
    return max(times, default=0)


def check_queue_metadata(data: bytes) -> None:
    """A queue's metadata is understood or refused; what is understood can be written back."""
    try:
        found = layout.parse_metadata(data)
    except CorruptMetadataError:
        return
    assert layout.parse_metadata(layout.format_metadata(found)) == found
