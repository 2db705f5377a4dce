"""The format of checksum files."""

import importlib.util
import shutil
import struct
import sys
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.checksums import entries
from tests.unit.diskqueue.queue_files import frame_all, payload

SEED = entries.make_seed("t", 3)


def encode(sizes: list[int], start: int = 0) -> tuple[bytes, bytes]:
    """Records of these sizes, and their entries."""
    data, lengths = frame_all([payload(n, size) for n, size in enumerate(sizes)])
    content = entries.encode(SEED, start, data, lengths)
    assert content == entries.encode_in_python(SEED, start, data, lengths)
    assert content == entries.encode(SEED, start, memoryview(data), array("I", lengths))
    return data, content


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_loop_over_records_is_compiled() -> None:
    assert entries.encode is not entries.encode_in_python


def test_where_nothing_was_compiled_python_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec(entries.__name__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "diskqueue._compiled", None)

    spec.loader.exec_module(again)

    assert again.encode is again.encode_in_python
    assert again.has_zero_sector is again.has_zero_sector_in_python


@pytest.mark.parametrize("lengths", [[4], [1, 1], [0, 3], [3, 0], [1, 3]])
def test_the_compiled_loop_reads_no_byte_beyond_the_records(lengths: list[int]) -> None:
    compiled = pytest.importorskip("diskqueue._compiled")

    with pytest.raises(ValueError, match=r"length|record"):
        compiled.encode(SEED, 0, b"abc", lengths)
    with pytest.raises(OverflowError):
        compiled.encode(SEED, 0, b"abc", [4, -1])
    with pytest.raises(TypeError):
        compiled.encode(SEED, 0, b"abc", array("q", [3]))


@given(
    zeros=st.lists(st.sampled_from([0, 1, 254, 510, 511, 512, 513, 1023, 1500]), max_size=6),
    others=st.integers(1, 600),
)
def test_a_sector_of_zeros_is_seen_wherever_it_begins(zeros: list[int], others: int) -> None:
    data = (b"x" * others).join([bytes(count) for count in zeros])
    expected = any(count >= 512 for count in zeros)

    assert entries.has_zero_sector_in_python(data) is expected
    assert entries.has_zero_sector(data) is expected
    assert entries.has_zero_sector(memoryview(data)) is expected
    # Large enough for other threads to run meanwhile.
    large = b"x" * (1 << 20)
    assert entries.has_zero_sector(large + data) is expected
    assert entries.has_zero_sector(data + large) is expected


def test_positions_beyond_four_gigabytes_are_whole() -> None:
    data, content = encode([26, 40_000, 30, 70_000], start=(1 << 40) + 3)

    first, *_, last = decode_all(content)
    assert (first.start, last.end) == ((1 << 40) + 3, (1 << 40) + 3 + len(data))


def decode_all(content: bytes, seed: int = SEED) -> list[entries.Entry]:
    return [entry for *_, entry in entries.iter_entries(content, seed, is_last=True)]


def test_entry_of_one_record_has_32_bytes_as_described() -> None:
    data, content = encode([40], start=7)

    numbers = (7, len(data), zlib.crc32(data[:14]), zlib.crc32(data))
    head = b"DQC1" + struct.pack(">HHQIII", 1, 0, *numbers)
    own_crc = zlib.crc32(head, zlib.crc32(b"t.3"))
    assert content == head + struct.pack(">I", own_crc)


def test_entry_of_several_records_lists_each() -> None:
    data, content = encode([40, 50, 26])

    [entry] = decode_all(content)
    assert (entry.start, entry.end, entry.crc) == (0, len(data), zlib.crc32(data))
    assert [(record.start, record.end) for record in entry.records()] == [
        (0, 44),
        (44, 98),
        (98, 128),
    ]
    assert all(
        record.crc == zlib.crc32(data[record.start : record.end]) for record in entry.records()
    )


@given(st.lists(st.sampled_from([26, 30, 1000, 40_000]), min_size=1, max_size=700))
def test_large_appends_are_divided_between_records(sizes: list[int]) -> None:
    data, content = encode(sizes, start=5)

    found = decode_all(content)
    records = [record for entry in found for record in entry.records()]
    assert [record.end - record.start for record in records] == [size + 4 for size in sizes]
    assert (records[0].start, records[-1].end) == (5, 5 + len(data))
    for entry in found:
        assert len(entry.records()) <= entries.MAX_RECORDS
        assert entry.end - entry.start <= entries.MAX_BYTES or len(entry.records()) == 1


def test_entries_of_another_segment_or_queue_are_none() -> None:
    _, content = encode([40])

    assert not decode_all(content, entries.make_seed("t", 4))
    assert not decode_all(content, entries.make_seed("u", 3))


@pytest.mark.parametrize("place", range(0, 32, 3))
def test_damage_takes_one_entry_and_not_the_next(place: int) -> None:
    first, second = encode([40])[1], encode([50], start=44)[1]
    damaged = bytearray(first + second)
    damaged[place] ^= 1

    assert [entry.start for entry in decode_all(bytes(damaged))] == [44]


def test_record_is_known_though_its_length_is_damaged() -> None:
    data, content = encode([40])
    [expected] = decode_all(content)[0].records()

    assert entries.is_record(b"\xff\xff\xff\xff" + data[4:], expected)
    assert not entries.is_record(data[:-1] + b"\0", expected)
    assert not entries.is_record(data[:-1], expected)
    assert entries.make_prefix(expected) == data[:4]


def test_entry_is_about_damaged_records_and_not_about_others() -> None:
    data, content = encode([40])
    [entry] = decode_all(content)
    other, _ = frame_all([payload(77, 40)])

    assert entry.is_about(data[:-1] + b"\0")  # the body is damaged
    assert entry.is_about(b"\xff" * 14 + data[14:])  # the header is
    assert not entry.is_about(other)


def test_unfinished_entry_waits_for_the_rest() -> None:
    _, content = encode([40])

    assert list(entries.iter_entries(content[:-1], SEED, is_last=False)) == []
    assert list(entries.iter_entries(content[:-1], SEED, is_last=True)) == []


def test_entries_move_to_a_copy_with_another_number() -> None:
    data, content = encode([40, 50], start=7)
    _, more = encode([30], start=7 + len(data))
    other = entries.make_seed("t", 9)

    moved = entries.move(content + b"damage" + more, SEED, other)

    assert decode_all(moved, other) == decode_all(content + more)
    assert decode_all(moved) == []
    assert entries.move(content + more, SEED, SEED) == content + more
