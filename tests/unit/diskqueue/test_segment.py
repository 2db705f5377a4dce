"""Records in one file."""

import struct
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue import CorruptSegmentError, segment
from tests.unit.diskqueue.queue_files import RECORD_BYTES, framed, payload, records

pytestmark = pytest.mark.usefixtures("closes_files")


@given(
    st.lists(st.binary(min_size=26, max_size=60), max_size=40),
    st.binary(max_size=8),
    st.integers(1, 50),
)
def test_cutting_gives_what_was_framed(
    payloads: list[bytes], prefix: bytes, max_records: int
) -> None:
    data = prefix + b"".join(map(framed, payloads))
    starts, ends = segment.split_records(
        data, len(prefix), len(data), max_records, segment.RecordLimits()
    )

    found = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    assert found == payloads[:max_records]


@given(st.integers(0, 400), st.integers(1, 20))
def test_uniform_records_are_cut_at_any_stop(stop: int, max_records: int) -> None:
    data = records(0, 12)

    starts, ends = segment.split_records(
        data, 0, min(stop, len(data)), max_records, segment.RecordLimits()
    )

    count = min(stop // RECORD_BYTES, max_records, 12)
    assert starts == [index * RECORD_BYTES + 4 for index in range(count)]
    assert ends == [(index + 1) * RECORD_BYTES for index in range(count)]


@pytest.mark.parametrize("byte", range(4))
def test_one_other_length_among_equal_ones_is_seen(byte: int) -> None:
    """Each of the four bytes of a length counts."""
    data = bytearray(records(0, 12))
    data[7 * RECORD_BYTES + byte] ^= 1

    starts, _ = segment.split_records(bytes(data), 0, len(data), 12, segment.RecordLimits())

    assert starts[:7] == [index * RECORD_BYTES + 4 for index in range(7)]
    assert starts != [index * RECORD_BYTES + 4 for index in range(12)]


def test_records_are_iterated_with_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(records(0, 5))

    assert list(segment.iter_records(str(path))) == [
        (index * RECORD_BYTES, payload(index)) for index in range(5)
    ]
    assert [offset for offset, _ in segment.iter_records(str(path), 32, 96)] == [32, 64]


def test_records_larger_than_one_piece_are_iterated(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    payloads = [payload(0, 1_000_000), payload(1), payload(2, 3_000_000), payload(3)]
    path.write_bytes(b"".join(map(framed, payloads)))

    assert [data for _, data in segment.iter_records(str(path))] == payloads


def test_iteration_ends_at_damage_with_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(records(0, 3)[:-1])
    records_found = segment.iter_records(str(path))
    assert [offset for offset, _ in islice(records_found, 2)] == [0, 32]

    with pytest.raises(CorruptSegmentError) as caught:
        next(records_found)

    assert (caught.value.offset, caught.value.is_torn) == (64, True)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("tail", "is_torn"),
    [
        (b"\x00", True),
        (b"\x00\x00\x00\x1c", True),
        (framed(payload(9))[:-1], True),
        (struct.pack(">i", 25) + b"x" * 25, False),
        (b"\x00" * 4096, False),
        (b"\xff" * 4, False),
        (b"\xff" * 40, False),
        (struct.pack(">i", 2**31 - 1) + b"x" * 40, False),
    ],
)
def test_walk_tells_a_torn_tail_from_other_damage(
    tmp_path: Path,
    tail: bytes,
    is_torn: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(records(0, 3) + tail)

    result = segment.walk(str(path))

    assert (result.record_count, result.end) == (3, 96)
    assert result.damage is not None
    assert result.damage.is_torn is is_torn


def test_walk_of_a_good_or_empty_file_finds_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(b"")
    assert segment.walk(str(path)) == segment.Walk(0, 0, None)

    path.write_bytes(records(0, 3))
    assert segment.walk(str(path), 32) == segment.Walk(2, 96, None)
