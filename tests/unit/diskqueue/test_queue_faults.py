"""Each system call of a queue fails, once or for good: no record is lost, no refused one comes.

And whatever fails, the files are closed at the end.
"""

import contextlib
from pathlib import Path

import pytest

from diskqueue import DiskQueue, RecordChunk, layout
from diskqueue.tools.check import check_queue
from tests.support.call_faults import CallFaults
from tests.unit.diskqueue.queue_files import RECORD_BYTES, frame_all, numbers, payload, segment_path

CALLS = ("open", "dup", "pwrite", "pread", "fsync", "ftruncate", "replace", "unlink", "fstat")


class Player:
    """Puts, reads and finishes records, and knows which of them were accepted."""

    def __init__(self, directory: Path, *, has_checksums: bool, max_count: int = 3) -> None:
        """Args: max_count: of records in a segment."""
        self.directory = directory
        self.max_count = max_count
        self.has_checksums = has_checksums
        self.accepted: list[int] = []
        self.finished: list[int] = []
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
        assert check_queue(str(self.directory), files).damage == []
        queue = self.open()
        found: list[int] = []
        while (batch := queue.read(100, 1 << 20)) is not None:
            found += numbers(list(batch))
        queue.close()
        return found


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> CallFaults:
    return CallFaults(monkeypatch, CALLS)


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_call_that_fails_costs_no_record(
    tmp_path: Path, faults: CallFaults, name: str, *, is_lasting: bool, has_checksums: bool
) -> None:
    (tmp_path / "0").mkdir()
    Player(tmp_path / "0", has_checksums=has_checksums).play()
    assert faults.counts[name] or (name == "fstat" and not has_checksums)

    for number in range(1, faults.counts[name] + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        faults.begin()
        player = Player(directory, has_checksums=has_checksums)
        faults.begin(name, number, is_lasting=is_lasting)

        player.play()

        faults.begin()
        found = player.read_again()
        accepted = set(player.accepted)
        assert found == sorted(found), number
        assert accepted - set(player.finished) <= set(found) <= accepted, number


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_call_that_fails_at_damage_costs_no_other_record(
    tmp_path: Path, faults: CallFaults, name: str, *, has_checksums: bool
) -> None:
    (tmp_path / "0").mkdir()
    player = Player(tmp_path / "0", has_checksums=has_checksums, max_count=100)
    faults.begin()
    player.find_damage()
    # Without a checksum the length of the record before the damage cannot be trusted.
    assert player.finished == ([0, 1, 3, 4, 5, 6] if has_checksums else [0, 3, 4, 5, 6])

    for number in range(1, faults.counts[name] + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        faults.begin()
        player = Player(directory, has_checksums=has_checksums, max_count=100)
        faults.begin(name, number)

        player.find_damage()

        faults.begin()
        queue = player.open()
        found = {*player.finished}
        while (batch := queue.read(100, 1 << 20)) is not None:
            found.update(numbers(list(batch)))
        queue.close()
        accepted = set(player.accepted)
        assert accepted - {*player.accepted[1:3]} <= found <= accepted, number
