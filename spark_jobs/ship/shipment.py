"""Shipment: one pass over the archive of a node, to a directory or an object store.

    checksums -> segment -> (whole, sizes compared) -> ledger -> metadata -> readers

The target is a data directory with nothing but an archive: `from=archive` reads it, and a stream
that followed the node's own archive goes on there with its checkpoint. Nothing is written to the
node's directory; a lock on its archive keeps a second pass out.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from diskqueue import layout
from diskqueue.checksums.entries import make_seed, move
from diskqueue.checksums.marks import have_same_mark, mark
from spark_jobs.pace import Pace
from spark_jobs.read.files.catalog import (
    ARCHIVE_DIRECTORY,
    NODE_FILE,
    find_directories,
    find_queues,
    read_generation,
)
from spark_jobs.read.files.checksums import MAX_CHECKSUM_BYTES
from spark_jobs.read.files.directory import OutputDirectory
from spark_jobs.read.options import ReadOptions
from spark_jobs.read.queue import Queue
from spark_jobs.ship.ledger import Ledger, Shipped, ledger_name, parse_ledger, topic_of_ledger
from spark_jobs.ship.tally import RecordTally

_CHUNK_BYTES = 1024 * 1024
_MAX_METADATA_BYTES = 4096
_MAX_LEDGER_BYTES = 1024 * 1024 * 1024
# The ledger is written whole, so not for each of many small segments.
_COMMIT_BYTES = 256 * 1024 * 1024
_COMMIT_S = 10.0


class ShipmentError(Exception):
    """Raised when a pass cannot go on; its text says what to do."""


@dataclass(slots=True)
class Passed:
    """The counts of one pass."""

    segment_count: int = 0
    byte_count: int = 0
    message_count: int = 0
    # Sentences about problems.
    warnings: list[str] = field(default_factory=list)


class Shipment:
    """The way from one node's archive to one target."""

    def __init__(
        self,
        options: ReadOptions,
        target: OutputDirectory,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: options: the data directory, and which topics.

        Raises:
            ShipmentError: it is not one directory.
            OSError: it cannot be read.
        """
        self._options = options
        found = find_directories(options)
        if len(found) != 1:
            raise ShipmentError("one node is shipped to one place: name one DATA_DIR")
        self._source = found[0][1]
        self._archive = self._source.child(ARCHIVE_DIRECTORY)
        self._target = target
        self._pace = pace
        self._clock = clock

    def run(self) -> Passed:
        """Ship finished segments that have not arrived.

        Raises:
            ShipmentError: the node keeps no history, another pass is at work, or the target is
                another node's.
            OSError: a file cannot be read or written.
        """
        if not self._archive.exists():
            raise ShipmentError(
                f"{self._source.name} has no archive: start nsqd with --retain-bytes or"
                " --retain-time"
            )
        passed = Passed()
        with self._lock():
            self._check_node()
            arrived = self._list_arrived()
            for queue in find_queues(self._options):
                self._ship_queue(queue, arrived, passed)
        return passed

    def verify(self) -> Iterator[str]:
        """Read all that has arrived, and yield a sentence about each file that is not as sent.

        Raises:
            OSError: a file cannot be read.
        """
        arrived = self._list_arrived()
        directory = self._target.reading().child(ARCHIVE_DIRECTORY)
        for topic in sorted(filter(None, map(topic_of_ledger, arrived))):
            ledger = self._read_ledger(topic, arrived)
            for name, _, sha256 in ledger.files():
                if name not in arrived:
                    yield f"{name} is missing"
                    continue
                digest = hashlib.sha256()
                with directory.open_file(name) as file:
                    while data := file.read(_CHUNK_BYTES):
                        self._pace.wait(len(data))
                        digest.update(data)
                if digest.hexdigest() != sha256:
                    yield f"{name} is not what was copied"

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep other passes of this machine out; a directory elsewhere cannot be locked."""
        path = self._archive.find_local_path()
        if path is None:
            yield
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ShipmentError(f"another ship is at work in {path}") from None
            yield
        finally:
            os.close(descriptor)

    def _check_node(self) -> None:
        """Refuse a target with the history of another node: the two would be mixed up."""
        ours = self._source.read_start(NODE_FILE, _MAX_METADATA_BYTES)
        theirs = self._target.reading().read_start(NODE_FILE, _MAX_METADATA_BYTES)
        if theirs is None and ours is not None:
            self._target.write(NODE_FILE, ours)
        elif ours != theirs:
            raise ShipmentError(
                f"{self._target.name} has the history of another node: ship each node to a"
                " directory of its own"
            )

    def _list_arrived(self) -> dict[str, int]:
        directory = self._target.reading().child(ARCHIVE_DIRECTORY)
        return directory.list_files() if directory.exists() else {}

    def _read_ledger(self, topic: str, arrived: dict[str, int]) -> Ledger:
        name = ledger_name(topic)
        if name not in arrived:
            return Ledger(topic)
        directory = self._target.reading().child(ARCHIVE_DIRECTORY)
        text = directory.read_start(name, _MAX_LEDGER_BYTES)
        return Ledger(topic) if text is None else parse_ledger(topic, text)

    def _ship_queue(self, queue: Queue, arrived: dict[str, int], passed: Passed) -> None:
        ledger = self._read_ledger(queue.topic, arrived)
        ledger.forget_removed(arrived)
        # Not so at first, after removals, or when a pass was stopped before it told readers.
        is_changed = not self._is_told(ledger)
        wrong = ledger.find_wrong(arrived)
        if wrong:
            passed.warnings.append(
                f"{len(wrong)} files that had arrived are missing or changed: {wrong[0]}, ..."
            )
        numbers = _finished(queue)
        if not numbers or queue.generation is None:
            if is_changed and ledger.generation is not None:
                self._commit(ledger)
            return
        waiting = _adopt(ledger, queue, numbers, passed)
        if waiting and is_changed:
            # Before the first copy, too: a queue without metadata is read as far as it goes.
            self._commit(ledger)
            is_changed = False
        committed_s, uncommitted_bytes = self._clock(), 0
        for number in waiting:
            shipped = self._copy(queue, number, ledger)
            if shipped is None:
                break  # deleted or made anew meanwhile; the next pass lists it again
            ledger.add(shipped)
            is_changed = True
            uncommitted_bytes += shipped.byte_count + shipped.checksum_bytes
            passed.segment_count += 1
            passed.byte_count += shipped.byte_count + shipped.checksum_bytes
            passed.message_count += shipped.message_count
            is_due = self._clock() - committed_s >= _COMMIT_S
            if is_due or uncommitted_bytes >= _COMMIT_BYTES:
                self._commit(ledger)
                committed_s, uncommitted_bytes, is_changed = self._clock(), 0, False
        if is_changed:
            self._commit(ledger)

    def _copy(self, queue: Queue, number: int, ledger: Ledger) -> Shipped | None:
        """Copy one segment and its checksum file; None if it is not there any more."""
        size = queue.sizes[number]
        assert queue.generation is not None
        arrives_as = number + ledger.base
        tally = RecordTally()
        digest = hashlib.sha256()
        # nsqd removes a segment before its checksums: one that is still there later, had all.
        checksums = self._read_checksums(queue, number, arrives_as)
        try:
            file = self._archive.open_file(queue.file_name(number))
        except FileNotFoundError:
            return None
        with file:
            # A file that was opened while the queue had its name is that queue's.
            if read_generation(self._archive, queue.name) != queue.generation:
                return None

            def chunks() -> Iterator[bytes]:
                while data := file.read(_CHUNK_BYTES):
                    self._pace.wait(len(data))
                    digest.update(data)
                    tally.feed(data)
                    yield data

            name = f"{ARCHIVE_DIRECTORY}/{ledger.file_name(arrives_as)}"
            if checksums:
                self._pace.wait(len(checksums))
                self._target.write_chunks(layout.checksum_path(name), [checksums])
            written = self._target.write_chunks(name, chunks())
        if written != size:
            raise ShipmentError(
                f"{queue.file_name(number)} has {written} bytes, and had {size}: nsqd does not"
                " change a finished segment; the copy is not used"
            )
        if checksums:
            self._mark(queue.file_name(number), ledger.file_name(arrives_as))
        return Shipped(
            *(arrives_as, queue.generation, number, written, digest.hexdigest()),
            *(tally.message_count, tally.first_ns, tally.last_ns),
            checksum_bytes=len(checksums),
            checksum_sha256=hashlib.sha256(checksums).hexdigest() if checksums else "",
        )

    def _read_checksums(self, queue: Queue, number: int, arrives_as: int) -> bytes:
        """Return the checksums of a segment under the number it gets; nothing if it has none."""
        name = layout.checksum_path(queue.file_name(number))
        content = self._archive.read_start(name, MAX_CHECKSUM_BYTES) or b""
        if number == arrives_as:
            return content
        # Each entry proves of which segment it is.
        return move(content, make_seed(queue.name, number), make_seed(queue.name, arrives_as))

    def _mark(self, source_name: str, name: str) -> None:
        """Have a local copy and its checksums know each other, if what they were copied of did."""
        source = self._archive.find_local_path()
        target = self._target.reading().child(ARCHIVE_DIRECTORY).find_local_path()
        if source is not None and target is not None:
            original, copy = f"{source}/{source_name}", f"{target}/{name}"
            if have_same_mark(original, layout.checksum_path(original)):
                mark(copy, layout.checksum_path(copy))

    def _is_told(self, ledger: Ledger) -> bool:
        """Tell whether the manifest for readers lists all that has arrived."""
        directory = self._target.reading().child(ARCHIVE_DIRECTORY)
        name = os.path.basename(layout.metadata_path("", ledger.topic))
        told = directory.read_start(name, _MAX_METADATA_BYTES)
        return told == layout.format_metadata(ledger.metadata())

    def _commit(self, ledger: Ledger) -> None:
        """Write down the arrived segments: for the next pass, then for readers."""
        files = f"{ARCHIVE_DIRECTORY}/"
        generation = os.path.basename(layout.generation_path("", ledger.topic))
        archive = self._target.reading().child(ARCHIVE_DIRECTORY)
        if ledger.generation is not None and read_generation(archive, ledger.topic) is None:
            # That of the first queue, for ever: a stream goes on when the topic is made anew.
            self._target.write(files + generation, f"{ledger.generation}\n".encode())
        self._target.write(files + ledger_name(ledger.topic), ledger.to_json())
        metadata = os.path.basename(layout.metadata_path("", ledger.topic))
        self._target.write(files + metadata, layout.format_metadata(ledger.metadata()))


def _finished(queue: Queue) -> list[int]:
    """Return the segments that are synced and do not grow any more, in order."""
    metadata = queue.metadata
    if metadata is None:
        return []
    return [n for n in sorted(queue.sizes) if metadata.read_file <= n < metadata.write_file]


def _adopt(ledger: Ledger, queue: Queue, numbers: list[int], passed: Passed) -> list[int]:
    """Go on with a queue; return the segments that have not arrived, and warn of those gone."""
    assert queue.generation is not None
    if ledger.generation not in (None, queue.generation):
        passed.warnings.append(
            f"topic {queue.topic} was deleted and made anew: what had not been shipped of it is"
            " gone"
        )
    ledger.adopt(queue.generation, numbers[0])
    waiting = [number for number in numbers if number + ledger.base >= ledger.next_number]
    if waiting and ledger.segments and waiting[0] + ledger.base > ledger.next_number:
        lost = waiting[0] + ledger.base - ledger.next_number
        passed.warnings.append(
            f"{lost} segments of topic {queue.topic} were deleted by nsqd before they were shipped:"
            " keep more (--retain-bytes, --retain-time), or ship more often"
        )
    return waiting
