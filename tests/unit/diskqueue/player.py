"""Player: plays with a queue on a disk that may fail, and knows which records were accepted."""

import contextlib
from pathlib import Path

from diskqueue import DiskQueue, RecordChunk, layout
from diskqueue.tools.check import check_queue
from tests.unit.diskqueue.queue_files import RECORD_BYTES, frame_all, numbers, payload, segment_path


class Player:
    """Puts, reads and finishes records, and knows which of them were accepted."""

    def __init__(self, directory: Path, *, has_checksums: bool, max_count: int = 3) -> None:
        """Args: max_count: of records in a segment."""
        self.directory = directory
        self.max_count = max_count
        self.has_checksums = has_checksums
        self.accepted: list[int] = []
        self.finished: list[int] = []
        self.notes: list[str] = []
        self.queue = self.open()

    def open(self) -> DiskQueue:
        return DiskQueue(
            *(self.directory, "t"),
            max_bytes_per_file=self.max_count * RECORD_BYTES,
            holds_messages=True,
            stores_generation=True,
            has_checksums=self.has_checksums,
        )

    def put(self, *records: int) -> None:
        with contextlib.suppress(OSError):
            self.queue.append(*frame_all([payload(number) for number in records]))
            self.accepted += records

    def put_aside(self, *records: int) -> None:
        chunk = RecordChunk(*frame_all([payload(number) for number in records]))
        try:
            job = self.queue.prepare_append([chunk])
        except OSError:
            return
        with contextlib.suppress(OSError):
            job.run()
        if job.end():
            self.accepted += records

    def put_and_undo(self, *records: int) -> None:
        with contextlib.suppress(OSError):
            data, lengths = frame_all([payload(number) for number in records])
            self.queue.append(data, lengths)
            self.queue.undo_append(lengths)

    def sync(self, *, with_metadata: bool = True) -> None:
        with contextlib.suppress(OSError):
            job = self.queue.prepare_sync(with_metadata=with_metadata)
            if job is not None:
                try:
                    job.run()
                except OSError as error:
                    self.queue.complete_sync(job, error)
                else:
                    self.queue.complete_sync(job)

    def finish(self, count: int) -> None:
        with contextlib.suppress(OSError):
            batch = self.queue.read(count, 1 << 20)
            if batch is not None:
                self.queue.commit(range(batch.first, batch.first + len(batch)))
                self.finished += numbers(list(batch))

    def play(self) -> None:
        self.put(0)
        self.put_and_undo(95)
        self.put(1)
        self.sync()
        self.put(2, 3, 4, 5)
        self.put_and_undo(90)
        self.put_and_undo(91, 92, 93, 94)
        self.finish(2)
        self.sync(with_metadata=False)
        self.put_aside(6, 7)
        self.put_aside(8, 9, 10, 11)
        self.sync()
        self.finish(4)
        self.put(12)
        self.sync()
        with contextlib.suppress(OSError):
            self.queue.close()

    def undo_more(self) -> None:
        """Take back appends that were larger than those behind them."""
        self.put(0)
        self.put_and_undo(95, 96, 97)
        self.put(1)
        self.sync()
        self.put_and_undo(95, 96, 97, 98)
        self.sync(with_metadata=False)
        self.put_and_undo(95, 96)
        self.put_aside(2)
        with contextlib.suppress(OSError):
            self.queue.close()

    def find_damage(self) -> None:
        """Read a segment that is damaged while it is written to."""
        for number in range(5):
            self.put(number)
        self.sync()
        path = segment_path(self.directory, 0)
        if path.exists():
            content = path.read_bytes()
            path.write_bytes(content[: 2 * RECORD_BYTES] + b"\xff" * RECORD_BYTES + content[96:])
        for number in (5, 6):
            self.put(number)
            self.finish(10)
        self.sync()
        with contextlib.suppress(OSError):
            self.queue.close()

    def read_again(self) -> list[int]:
        """Return what a later start delivers."""
        files = layout.find_queue_files(str(self.directory), "t")
        report = check_queue(str(self.directory), files)
        assert report.damage == []
        self.notes = report.notes
        queue = self.open()
        found: list[int] = []
        while (batch := queue.read(100, 1 << 20)) is not None:
            found += numbers(list(batch))
        queue.close()
        return found
