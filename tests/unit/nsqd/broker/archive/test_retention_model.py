"""Any order of operations on a RetainedLog, against a list of all that was appended.

History is the end of that list, from a place that only ever moves on. A power cut after any change
of the disk loses nothing of it that a sync has covered.
"""

import os
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from diskqueue import envelope
from diskqueue.segment import iter_records
from nsqd.broker.archive.retention import MIN_SEGMENT_BYTES, Chunk, RetainedLog, Retention
from nsqd.broker.queue.batch import MixedBatch
from tests.support.volatile_disk import Cut, VolatileDisk

START_NS = 1_700_000_000 * 10**9
MINUTE_NS = 60 * 10**9
STEP_COUNT = 60


class Moment(NamedTuple):
    """An image of the disk, and from which to which message it has history at the least."""

    kind: Cut
    files: frozenset[tuple[str, bytes]]
    first: int
    synced_end: int
    end: int


def open_log(directory: Path, *, has_checksums: bool) -> RetainedLog:
    return RetainedLog(
        *(str(directory), "t", Retention(4 * MIN_SEGMENT_BYTES, 600.0)),
        max_bytes_per_file=1 << 20,
        max_record_bytes=1 << 20,
        has_checksums=has_checksums,
    )


def read(log: RetainedLog, *, is_pinned: bool = False) -> list[int]:
    """Return the numbers of the messages that a look at the log finds."""
    look = log.look(is_pinned=is_pinned)
    found = []
    for segment in look.segments:
        fd = look.open_segment(segment)
        for _, record in iter_records(f"/proc/self/fd/{fd}", segment.start, segment.end):
            found.append(int(envelope.decode(record).body[:8]))
        os.close(fd)
        if segment.pin is not None:
            look.pins.release(segment.pin)
    assert look.record_count == len(found)
    assert look.written == log.end
    assert look.synced <= look.written
    if look.segments:
        assert look.read == (look.segments[0].number, look.segments[0].start)
    return found


class Model:
    """A log, and the sizes and times of all messages that were appended to it."""

    def __init__(
        self, directory: Path, disk: VolatileDisk, seed: int, *, has_checksums: bool
    ) -> None:
        self.lots = random.Random(seed)
        self.directory = directory
        self.disk = disk
        self.has_checksums = has_checksums
        self.now_ns = START_NS
        self.sizes: list[int] = []
        self.times: list[int] = []
        self.first = 0
        self.synced_end = 0
        self.is_synced = True
        self.attempted_end = 0
        self.moments: set[Moment] = set()
        disk.on_change = self.note
        self.log = open_log(directory, has_checksums=has_checksums)

    def note(self) -> None:
        for kind in (Cut.LOST, Cut.NAMED):
            files = frozenset(self.disk.cut(kind).items())
            end = max(self.attempted_end, len(self.sizes))
            self.moments.add(Moment(kind, files, self.first, self.synced_end, end))

    def make_chunk(self, number: int) -> tuple[Chunk, list[int]]:
        sizes = [self.lots.choice([100, 5000, 9000]) for _ in range(self.lots.randint(1, 4))]
        messages = [
            (
                b"%016x" % (number + n),
                self.now_ns,
                0,
                b"%08d" % (number + n) + bytes(size - 38),
                None,
            )
            for n, size in enumerate(sizes)
        ]
        records, lengths = MixedBatch.from_messages(messages).records(0, len(sizes))
        assert lengths == sizes
        return Chunk(records, lengths, self.now_ns, self.now_ns), sizes

    def append(self) -> None:
        chunks: list[Chunk] = []
        sizes: list[list[int]] = []
        for _ in range(self.lots.randint(1, 3)):
            chunk, more = self.make_chunk(len(self.sizes) + sum(map(len, sizes)))
            chunks.append(chunk)
            sizes.append(more)
        self.attempted_end = len(self.sizes) + sum(map(len, sizes))
        count = self.log.append(chunks, self.now_ns)
        assert 1 <= count <= len(chunks)
        self.count_appended([size for more in sizes[:count] for size in more])

    def append_now(self) -> None:
        chunk, sizes = self.make_chunk(len(self.sizes))
        self.attempted_end = len(self.sizes) + len(sizes)
        if self.log.append_now(chunk.data, chunk.lengths, self.now_ns):
            self.count_appended(sizes)

    def count_appended(self, sizes: list[int]) -> None:
        self.sizes += sizes
        self.times += [self.now_ns] * len(sizes)
        self.is_synced = False

    def wait(self) -> None:
        self.now_ns += self.lots.choice([1, 1, 5]) * MINUTE_NS

    def trim(self) -> None:
        has_dropped = self.log.trim(self.now_ns)
        left = len(self.sizes) - self.log.record_count
        assert has_dropped == (left > self.first)
        self.first = left
        if has_dropped and self.lots.random() < 0.5:
            self.log.delete_dropped()
        elif has_dropped:
            self.is_synced = False

    def sync(self) -> None:
        self.log.sync()
        self.synced_end = len(self.sizes)
        self.is_synced = True

    def sync_records(self) -> None:
        sync = self.log.begin_sync(with_metadata=False)
        self.log.end_sync(sync, sync.run())
        self.synced_end = len(self.sizes)

    def reopen(self) -> None:
        self.log.close()
        self.synced_end = len(self.sizes)
        self.is_synced = True
        self.log = open_log(self.directory, has_checksums=self.has_checksums)

    def check(self) -> None:
        log, kept = self.log, range(self.first, len(self.sizes))
        assert log.record_count == len(kept)
        assert log.size_bytes == sum(self.sizes[number] for number in kept)
        assert read(log, is_pinned=self.lots.random() < 0.5) == list(kept)
        assert log.oldest_ns == (self.times[kept[0]] if kept else 0)
        if self.is_synced:
            assert not log.is_dirty
        names = [name for name in os.listdir(self.directory) if name.endswith(".dat")]
        if not log.is_dirty:
            assert log.segment_count == len([name for name in names if "meta" not in name])

    def play(self) -> None:
        steps = [
            *(self.append, self.append, self.append_now, self.append_now, self.wait, self.trim),
            *(self.sync, self.sync_records, self.reopen),
        ]
        for _ in range(STEP_COUNT):
            self.lots.choice(steps)()
            self.check()
        self.log.close()


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_history_is_the_end_of_what_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, has_checksums: bool
) -> None:
    directory = tmp_path / "archive"
    directory.mkdir()
    with monkeypatch.context() as patch:
        disk = VolatileDisk(patch, directory)
        model = Model(directory, disk, seed, has_checksums=has_checksums)
        model.play()
        disk.close()

    monkeypatch.setattr("os.fsync", lambda _fd: None)
    lots = random.Random(seed)
    moments = sorted(model.moments, key=lambda moment: (moment.end, len(moment.files)))
    for number, moment in enumerate(lots.sample(moments, min(60, len(moments)))):
        copy = tmp_path / str(number)
        copy.mkdir()
        for name, content in moment.files:
            (copy / name).write_bytes(content)
        log = open_log(copy, has_checksums=has_checksums)
        found = read(log)
        log.close()
        assert found == list(range(found[0], found[-1] + 1) if found else ())
        assert set(found) >= set(range(moment.first, moment.synced_end)), moment.kind
        assert set(found) <= set(range(moment.end))
