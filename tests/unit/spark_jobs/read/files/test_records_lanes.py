"""Offsets found in lanes are those of the plain walk, for any bytes."""

import random
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskqueue.segment import RecordLimits, split_records
from spark_jobs.read.files import records
from spark_jobs.read.files.records import find_records
from tests.spark.data_dirs import TIME_NS, Message, content

LIMITS = RecordLimits()
# Small enough that lanes are used for the records that Hypothesis makes.
SMALL = {"_MIN_WINDOW_BYTES": 64, "_MIN_RECORDS": 2, "_RECORDS_PER_LANE": 2, "_SAMPLE_COUNT": 1}


def check(data: bytes, stop: int | None = None, limits: RecordLimits = LIMITS) -> int:
    """Compare small lanes with diskqueue's own walk; return the number of records."""
    stop = len(data) if stop is None else stop
    starts, ends = split_records(data, 0, stop, max(stop, 1), limits)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(records, name, value)
        offsets, end = find_records(bytearray(data), stop, limits)

    assert offsets.dtype == np.int64
    assert offsets.tolist() == [start - 4 for start in starts]
    assert end == (ends[-1] if ends else 0)
    return len(starts)


bodies = st.binary(max_size=60)
times = st.one_of(
    st.integers(TIME_NS, TIME_NS + 10**9), st.integers(-(2**63), 2**63 - 1), st.just(0)
)
plain_messages = st.builds(
    Message, bodies, times, st.integers(0, 65535), st.binary(min_size=16, max_size=16)
)
# Bodies made of records, whole or cut off, so that most guesses are wrong.
nested_bodies = st.builds(
    lambda inner, cut: content(inner)[cut:],
    st.lists(plain_messages, max_size=8),
    st.integers(0, 40),
)
any_messages = st.one_of(plain_messages, st.builds(Message, nested_bodies, times))
slow = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)


@slow
@given(st.lists(any_messages, min_size=1, max_size=60))
def test_whole_segments_have_all_records(records: list[Message]) -> None:
    assert check(content(records)) == len(records)


@slow
@given(st.lists(any_messages, min_size=1, max_size=40), st.data())
def test_a_record_cut_by_the_window_is_left_out(
    records: list[Message], data: st.DataObject
) -> None:
    segment = content(records)

    check(segment, data.draw(st.integers(0, len(segment))))


@slow
@given(st.lists(any_messages, min_size=1, max_size=40), st.data())
def test_damage_ends_the_records_where_the_plain_walk_ends(
    records: list[Message], data: st.DataObject
) -> None:
    segment = bytearray(content(records))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(segment) - 1))
        segment[position] = data.draw(st.integers(0, 255))

    check(bytes(segment))


@slow
@given(st.binary(max_size=3000))
def test_any_bytes_give_what_the_plain_walk_gives(data: bytes) -> None:
    check(data)


@slow
@given(st.lists(plain_messages, min_size=1, max_size=40), st.integers(26, 90))
def test_records_above_the_limit_end_the_walk(
    records: list[Message], max_record_bytes: int
) -> None:
    check(content(records), limits=RecordLimits(max_record_bytes=max_record_bytes))


def test_zeros_and_lengths_of_all_ones_are_no_records() -> None:
    check(bytes(4096))
    check(b"\xff" * 4096)
    check(struct.pack(">i", 26) * 1000)


def test_bodies_full_of_records_do_not_lead_astray() -> None:
    inner = content([Message(b"x" * 30, TIME_NS + n) for n in range(50)])
    records = [Message(inner, TIME_NS + n) for n in range(200)]

    assert check(content(records)) == 200


@pytest.mark.parametrize("seed", range(3))
def test_mixed_sizes_and_old_timestamps_at_real_sizes(seed: int) -> None:
    chance = random.Random(seed)
    records = []
    for number in range(6000):
        size = chance.choice((0, 10, 150, 200, 300, 5000 if number % 500 == 0 else 90))
        time_ns = TIME_NS + number if chance.random() < 0.95 else chance.randrange(2**62)
        records.append(Message(chance.randbytes(size), time_ns, 0, b"%016x" % number))
    data = content(records)
    starts, ends = split_records(data, 0, len(data), len(data), RecordLimits())

    offsets, end = find_records(bytearray(data), len(data), RecordLimits())

    assert len(data) > 512 * 1024
    assert len(starts) == 6000
    assert offsets.tolist() == [start - 4 for start in starts]
    assert end == ends[-1]


@pytest.mark.parametrize("body_bytes", [0, 200, 70_000])
def test_records_of_one_size_at_real_sizes(body_bytes: int) -> None:
    count = 2_000_000 // (body_bytes + 30)
    data = bytearray(content(Message(b"x" * body_bytes, TIME_NS + n) for n in range(count)))

    offsets, end = find_records(data, len(data), RecordLimits())

    assert offsets.tolist() == list(range(0, len(data), body_bytes + 30))
    assert end == len(data)
