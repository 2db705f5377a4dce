"""The power is cut after any change of the disk: no record that a sync has covered is lost.

No record that was finished before a sync comes again, and no other bytes are taken for records.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from diskqueue import DiskQueue, RecordChunk
from tests.support.volatile_disk import Cut, VolatileDisk
from tests.unit.diskqueue.queue_files import RECORD_BYTES, frame_all, numbers, payload

STEP_COUNT = 40
MAX_COUNT = 90  # of records: their numbers have two digits


class Moment(NamedTuple):
    """An image of the disk, and the records that must, may and must not be found in it."""

    kind: Cut
    files: frozenset[tuple[str, bytes]]
    durable: frozenset[int]
    possible: frozenset[int]
    gone: frozenset[int]


class Player:
    """Does anything that a queue's owner may do, by lot."""

    def __init__(
        self, directory: Path, disk: VolatileDisk, seed: int, *, has_checksums: bool
    ) -> None:
        self.lots = random.Random(seed)
        self.directory = directory
        self.disk = disk
        self.has_checksums = has_checksums
        self.next_number = 0
        self.accepted: set[int] = set()
        self.attempted: set[int] = set()
        # Read and not finished: the number of the record by its ordinal.
        self.outstanding: dict[int, int] = {}
        self.finished: set[int] = set()
        # By the last sync: the records that it has covered, and those finished before it.
        self.durable: set[int] = set()
        self.gone: set[int] = set()
        self.moments: set[Moment] = set()
        disk.on_change = self.note
        self.queue = open_queue(directory, has_checksums=has_checksums)

    def note(self) -> None:
        for kind in Cut:
            self.moments.add(
                Moment(
                    *(kind, frozenset(self.disk.cut(kind).items())),
                    frozenset(self.durable - self.finished),
                    frozenset(self.accepted | self.attempted),
                    frozenset(self.gone),
                )
            )

    def play(self) -> None:
        steps: list[Callable[[], None]] = [
            *(self.put, self.put_aside, self.put_and_undo, self.read, self.read),
            *(self.finish_some, self.finish_all, self.sync, self.sync, self.sync_appends),
            self.reopen,
        ]
        for _ in range(STEP_COUNT):
            self.lots.choice(steps)()
        self.reopen()
        self.queue.close()
        self.note()

    def take_numbers(self) -> list[int]:
        count = min(self.lots.choice([1, 1, 2, 5]), MAX_COUNT - self.next_number)
        self.next_number += count
        return list(range(self.next_number - count, self.next_number))

    @contextlib.contextmanager
    def attempt(self, records: Sequence[int]) -> Iterator[tuple[bytes, list[int]]]:
        self.attempted = set(records)
        try:
            yield frame_all([payload(number) for number in records])
        finally:
            self.attempted = set()

    def put(self) -> None:
        if records := self.take_numbers():
            with self.attempt(records) as (data, lengths):
                self.queue.append(data, lengths)
                self.accepted.update(records)

    def put_aside(self) -> None:
        if records := self.take_numbers():
            with self.attempt(records) as (data, lengths):
                job = self.queue.prepare_append([RecordChunk(data, lengths)])
                job.run()
                assert job.end()
                self.accepted.update(records)

    def put_and_undo(self) -> None:
        with self.attempt([97, 98, 99][: self.lots.randint(1, 3)]) as (data, lengths):
            self.queue.append(data, lengths)
            self.queue.undo_append(lengths)

    def read(self) -> None:
        batch = self.queue.read(self.lots.randint(1, 6), 1 << 20)
        if batch is not None:
            for index, number in enumerate(numbers(list(batch))):
                self.outstanding[batch.first + index] = number

    def finish_some(self) -> None:
        count = self.lots.randint(0, len(self.outstanding))
        self.finish(self.lots.sample(sorted(self.outstanding), count))

    def finish_all(self) -> None:
        self.finish(list(self.outstanding))

    def finish(self, ordinals: list[int]) -> None:
        self.finished.update(self.outstanding.pop(ordinal) for ordinal in ordinals)
        self.queue.commit(ordinals)

    def sync_appends(self) -> None:
        self.sync(with_metadata=False)

    def sync(self, *, with_metadata: bool = True) -> None:
        covered, finished = set(self.accepted), set(self.finished)
        job = self.queue.prepare_sync(with_metadata=with_metadata)
        if job is not None:
            try:
                job.run()
            except OSError as error:
                self.queue.complete_sync(job, error)
                return
            self.queue.complete_sync(job)
        self.durable = covered
        if with_metadata:
            self.gone = finished

    def reopen(self) -> None:
        self.queue.close()
        self.durable, self.gone = set(self.accepted), set(self.finished)
        self.queue = open_queue(self.directory, has_checksums=self.has_checksums)
        self.outstanding.clear()


def open_queue(directory: Path, *, has_checksums: bool) -> DiskQueue:
    return DiskQueue(
        *(directory, "t"),
        max_bytes_per_file=3 * RECORD_BYTES,
        holds_messages=True,
        stores_generation=True,
        has_checksums=has_checksums,
    )


def check(directory: Path, moment: Moment, *, has_checksums: bool) -> None:
    directory.mkdir()
    for name, content in moment.files:
        (directory / name).write_bytes(content)
    queue = open_queue(directory, has_checksums=has_checksums)
    found: list[int] = []
    while (batch := queue.read(100, 1 << 20)) is not None:
        found += numbers(list(batch))
    queue.delete()
    assert found == sorted(set(found))
    assert moment.durable <= set(found) <= moment.possible - moment.gone, moment.kind


def play(
    patch: pytest.MonkeyPatch,
    directory: Path,
    seed: int,
    *,
    has_checksums: bool,
    failing_fsync: int = 0,
) -> tuple[set[Moment], int]:
    """Return the moments of a play, and how many fsyncs it has made."""
    directory.mkdir()
    disk = VolatileDisk(patch, directory)
    disk.failing_fsync = failing_fsync
    player = Player(directory, disk, seed, has_checksums=has_checksums)
    # After a close that failed the kernel has bytes that the disk has not, and no process that
    # starts then can tell.
    with contextlib.suppress(OSError):
        player.play()
    disk.close()
    return player.moments, disk.fsync_count


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_costs_no_record_that_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, has_checksums: bool
) -> None:
    with monkeypatch.context() as patch:
        moments, fsync_count = play(patch, tmp_path / "0", seed, has_checksums=has_checksums)
    assert fsync_count > 10
    for failing in random.Random(seed).sample(range(1, fsync_count + 1), 2):
        with monkeypatch.context() as patch:
            moments |= play(
                *(patch, tmp_path / str(failing), seed),
                has_checksums=has_checksums,
                failing_fsync=failing,
            )[0]

    monkeypatch.setattr("os.fsync", lambda _fd: None)
    for number, moment in enumerate(moments):
        check(tmp_path / f"cut{number}", moment, has_checksums=has_checksums)
