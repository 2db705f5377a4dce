"""Lanes at their real sizes."""

import random

import pytest

from diskqueue.segment import Limits, split_records
from spark_jobs.read.lanes import find_records
from tests.spark.data_dirs import TIME_NS, Message, content


@pytest.mark.parametrize("seed", range(3))
def test_mixed_sizes_and_old_timestamps(seed: int) -> None:
    chance = random.Random(seed)
    records = []
    for number in range(6000):
        size = chance.choice((0, 10, 150, 200, 300, 5000 if number % 500 == 0 else 90))
        time_ns = TIME_NS + number if chance.random() < 0.95 else chance.randrange(2**62)
        records.append(Message(chance.randbytes(size), time_ns, 0, b"%016x" % number))
    data = content(records)
    starts, ends = split_records(data, 0, len(data), len(data), Limits())

    offsets, end = find_records(bytearray(data), len(data), Limits())

    assert len(data) > 512 * 1024
    assert len(starts) == 6000
    assert offsets.tolist() == [start - 4 for start in starts]
    assert end == ends[-1]


@pytest.mark.parametrize("body_bytes", [0, 200, 70_000])
def test_records_of_one_size(body_bytes: int) -> None:
    count = 2_000_000 // (body_bytes + 30)
    data = bytearray(content(Message(b"x" * body_bytes, TIME_NS + n) for n in range(count)))

    offsets, end = find_records(data, len(data), Limits())

    assert offsets.tolist() == list(range(0, len(data), body_bytes + 30))
    assert end == len(data)
