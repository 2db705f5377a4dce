"""A directory that is written to, rolled and consumed while it is read."""

import random
import threading
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from spark_jobs.read import plan
from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.options import ReadOptions, parse_read_options
from spark_jobs.read.predicate import Predicate
from spark_jobs.read.scan import SegmentLostError, SlicePack, find_corruptions, read_batches
from tests.spark.data_dirs import Message

READS = 200


class BusyQueue(threading.Thread):
    """Puts numbered messages, syncs now and then, consumes some, until it is told to stop."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__()
        self._queue = DiskQueue(directory, "t", max_bytes_per_file=3000)
        self._chance = random.Random(seed)
        self._must_stop = threading.Event()
        self.put_count = 0

    def run(self) -> None:
        chance = self._chance
        while not self._must_stop.is_set():
            bodies = [b"%09d" % (self.put_count + n) for n in range(chance.randint(1, 40))]
            self._queue.put([Message(body * 3).record()[4:] for body in bodies])
            self.put_count += len(bodies)
            if chance.random() < 0.3:
                self._queue.sync()
            if self._queue.depth > 400 or chance.random() < 0.2:
                batch = self._queue.read(chance.randint(1, 60), 1 << 20)
                if batch is not None:
                    self._queue.commit(range(batch.first, batch.first + len(batch)))
        self._queue.close()

    def stop(self) -> None:
        self._must_stop.set()
        self.join(30)


def read_numbers(options: ReadOptions) -> list[int]:
    """The numbers of the messages that can be read now; there must be no damage."""
    schema = arrow_schema(message_schema(("body",)))
    settings = plan.settings(options)
    numbers: list[int] = []
    for pack in plan.plan_scan(options, Predicate()):
        assert isinstance(pack, SlicePack)
        for batch in read_batches(pack.slices, schema, settings):
            numbers += [int(body[:9]) for body in batch["body"].to_pylist()]
        assert list(find_corruptions(pack.slices, settings)) == []
    return numbers


@pytest.mark.parametrize("seed", range(3))
def test_every_read_is_a_piece_of_the_queue_without_a_gap(seed: int, tmp_path: Path) -> None:
    options = parse_read_options({"path": str(tmp_path), "mode": "FAILFAST"})
    queue = BusyQueue(tmp_path, seed)
    queue.start()
    complete_reads = lost_count = 0
    try:
        while complete_reads < READS and lost_count < 50 * READS:
            try:
                numbers = read_numbers(options)
            except SegmentLostError:
                lost_count += 1
                continue
            if numbers:
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert numbers[-1] < queue.put_count
                complete_reads += 1
    finally:
        queue.stop()

    assert complete_reads == READS
