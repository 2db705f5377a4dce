"""Records are found again behind damage, and none is made up."""

import random
import struct
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diskqueue import envelope
from diskqueue.envelope import HEADER_BYTES
from diskqueue.salvage import (
    Span,
    find_resume,
    find_spans,
    find_stranger,
    has_message_shape,
    is_length_right,
    is_record_start,
)
from diskqueue.segment import DEFAULT_MAX_RECORD_BYTES
from tests.unit.diskqueue.queue_files import RECORD_BYTES, framed, payload, records

pytestmark = pytest.mark.usefixtures("closes_files")


def kept(data: bytes) -> list[bytes]:
    spans = list(find_spans(data))
    assert [span.start for span in spans] == [0, *[span.end for span in spans]][: len(spans)]
    assert not spans or spans[-1].end == len(data)
    return [data[span.start + 4 : span.end] for span in spans if span.is_kept]


def lost(data: bytes) -> list[tuple[int, int]]:
    return [(span.start, span.end) for span in find_spans(data) if not span.is_kept]


def test_good_segment_is_kept_whole() -> None:
    assert list(find_spans(records(0, 3))) == [
        Span(start, start + RECORD_BYTES, is_kept=True) for start in (0, 32, 64)
    ]
    assert list(find_spans(b"")) == []


@pytest.mark.parametrize("length", [-1, 0, 25, 2**30])
@pytest.mark.parametrize("index", [0, 1, 8, 9])
def test_record_with_an_impossible_length_is_lost_alone(length: int, index: int) -> None:
    data = bytearray(records(0, 10))
    struct.pack_into(">i", data, index * RECORD_BYTES, length)

    expected = [payload(number) for number in range(10) if number != index]
    assert kept(bytes(data)) == expected
    assert lost(bytes(data)) == [(index * RECORD_BYTES, (index + 1) * RECORD_BYTES)]


def test_length_that_swallows_the_next_records_is_seen_through() -> None:
    """The true next record lies inside and leads on past the false end."""
    data = bytearray(records(0, 10))
    struct.pack_into(">i", data, 3 * RECORD_BYTES, 28 + 50)

    assert kept(bytes(data)) == [payload(number) for number in range(10) if number != 3]


def test_length_that_leads_into_the_last_bytes_is_seen_through() -> None:
    """No record can start where it ends, so the records inside are the proof against it."""
    data = bytearray(records(0, 20))
    struct.pack_into(">i", data, 16 * RECORD_BYTES, 104)

    assert kept(bytes(data)) == [payload(number) for number in range(20) if number != 16]


@pytest.mark.parametrize(
    ("message_id", "found"),
    [(b"0123456789abcdef", [b"0", b"1", b"2"]), (b"some tool's ids!", [b"0", b"1"])],
)
def test_a_lone_record_between_damage_needs_an_id_of_nsqd(
    message_id: bytes, found: list[bytes]
) -> None:
    """Records of other tools have little to tell them by: three in a row are believed."""

    def record(number: int) -> bytes:
        return framed(struct.pack(">qH16s", 1_600_000_000 * 10**9, 0, message_id) + b"%d" % number)

    damage = bytes(40)
    data = record(0) + record(1) + damage + record(2) + damage

    assert [each[26:] for each in kept(data)] == found


def test_records_are_believed_though_a_false_length_leads_to_the_last_of_them() -> None:
    def record(body: bytes, message_id: bytes = b"some tool's ids!") -> bytes:
        return framed(struct.pack(">qH16s", 1_600_000_000 * 10**9, 0, message_id) + body)

    good = [record(b"%d" % number) for number in range(5)]
    head = record(b"")[4:]
    swallowed = len(good[2] + good[3])
    false = struct.pack(">i", len(head) + swallowed) + head
    junk = b"\xff" * 40

    data = good[0] + good[1] + junk + false + good[2] + good[3] + good[4] + junk

    assert [each[26:] for each in kept(data)] == [b"0", b"1", b"2", b"3", b"4"]


def test_text_behind_zeros_is_no_record() -> None:
    """A block that a power cut has left out ends in the middle of a body of hex digits."""
    text = b"51d6ee86bf52d77525a112f76eba4729" * 4
    data = records(0, 2) + bytes(64) + text + records(2, 2)

    assert kept(data) == [payload(number) for number in range(4)]


def make_cut_header() -> bytes:
    """A record whose length and first byte are in a lost sector, with a body of hex digits.

    From its third byte on it looks like another record: zeros and the second byte of the time are a
    length of 233, the rest of the time is one of 2022, and the end of the id an id.
    """
    record = framed(
        envelope.encode(0x18E916E7CF6395A2, 0, b"189f385ea9a69003", b"74/263:" + b"f" * 262)
    )
    return bytes(5) + record[5:]


def test_rest_of_a_header_behind_zeros_is_no_record() -> None:
    data = records(0, 1) + bytes(475) + make_cut_header()

    assert kept(data + records(1, 2)) == [payload(0), payload(1), payload(2)]
    assert kept(data + b"\xff" * 40) == [payload(0)]


def test_resume_is_not_in_the_rest_of_a_header_behind_zeros(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    data = records(0, 1) + bytes(475) + make_cut_header()
    path.write_bytes(data + records(1, 2))
    with path.open("rb") as file:
        size = path.stat().st_size
        resume = find_resume(file.fileno(), RECORD_BYTES, size, DEFAULT_MAX_RECORD_BYTES)

    assert resume == len(data)


def test_body_that_contains_records_is_kept_in_one_piece() -> None:
    outer = payload(0)[:26] + records(50, 3)
    data = framed(payload(1)) + framed(outer) + framed(payload(2))

    assert kept(data) == [payload(1), outer, payload(2)]


def test_body_that_contains_records_before_damage_is_kept_as_doubtful() -> None:
    outer = payload(0)[:26] + records(50, 3)
    data = framed(payload(1)) + framed(outer) + b"\xff" * 50 + framed(payload(2))

    assert kept(data) == [payload(1), outer, payload(2)]
    assert [span.is_doubtful for span in find_spans(data) if span.is_kept] == [False, True, False]


def test_torn_tail_is_lost_without_doubt_about_the_record_before() -> None:
    data = records(0, 3)[:-5]

    assert kept(data) == [payload(0), payload(1)]
    assert not any(span.is_doubtful for span in find_spans(data))


def test_zeros_in_the_middle_are_skipped() -> None:
    """Some file systems have these after a power cut."""
    data = records(0, 5) + b"\x00" * 10_000 + records(5, 5)

    assert kept(data) == [payload(number) for number in range(10)]
    assert lost(data) == [(160, 10_160)]


def test_ids_need_not_be_hex() -> None:
    def message(number: int) -> bytes:
        return envelope.encode(1_700_000_000_000_000_000, 0, b"ID-%013d" % number, b"b" * 9)

    data = b"".join(framed(message(number)) for number in range(5))
    damaged = data + b"\xff" * 33 + data

    assert kept(damaged) == [message(number) for number in range(5)] * 2


def test_ids_need_not_be_hex_even_if_the_beginning_is_damaged() -> None:
    def message(number: int) -> bytes:
        return envelope.encode(1_700_000_000_000_000_000, 0, b"ID-%013d" % number, b"b" * 9)

    data = b"\xff" * 33 + b"".join(framed(message(number)) for number in range(5))

    assert kept(data) == [message(number) for number in range(5)]


def test_timestamps_need_not_be_real() -> None:
    data = b"".join(framed(b"\x00" * 10 + b"%016x" % number) for number in range(5))

    assert len(kept(data)) == 5


def test_garbage_gives_nothing() -> None:
    assert kept(random.Random(1).randbytes(50_000)) == []
    assert kept(b"\x00" * 5000) == []
    assert kept(b"x") == []


@settings(max_examples=200)
@given(st.integers(0, 19), st.binary(min_size=1, max_size=12), st.integers(0, 100), st.data())
def test_whatever_is_overwritten_the_others_are_kept(
    index: int, junk: bytes, offset: int, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(26, 90), min_size=20, max_size=20))
    payloads = [payload(number, size) for number, size in enumerate(sizes)]
    content = bytearray(b"".join(map(framed, payloads)))
    starts = [0, *accumulate(4 + size for size in sizes)]
    at = starts[index] + min(offset, 3 + sizes[index])
    end = min(at + len(junk), len(content))
    content[at:end] = junk[: end - at]
    for start, size in zip(starts, sizes, strict=False):
        # A false length that leads to a true record looks like a body with records in it.
        (length,) = struct.unpack_from(">i", content, start)
        assume(length == size or start + 4 + length not in starts)

    found = kept(bytes(content))

    untouched = [
        body
        for body, start in zip(payloads, starts, strict=False)
        if start >= end or start + 4 + len(body) <= at
    ]
    assert [body for body in found if body in untouched] == untouched
    assert len(found) <= len(payloads)


@pytest.mark.parametrize(("body_bytes", "cut_bytes"), [(0, 0), (0, 1), (1, 0), (1, 1), (9, 5)])
def test_a_record_may_start_where_the_rest_of_the_segment_has_room_for_it(
    body_bytes: int, cut_bytes: int
) -> None:
    record = framed(payload(7, HEADER_BYTES + body_bytes))
    rest = record[: len(record) - cut_bytes]

    assert is_record_start(rest, len(rest), 1000) is not bool(cut_bytes)


@pytest.mark.parametrize(("chain_count", "are_found"), [(2, False), (3, True)])
def test_records_of_any_shape_are_believed_if_three_follow_one_another(
    chain_count: int, *, are_found: bool
) -> None:
    lots = random.Random(1)
    numbers = range(8 + chain_count)
    content = [framed(b"no message %02d " % number + lots.randbytes(30)) for number in numbers]
    damaged = (3, 4 + chain_count)
    for number in damaged:
        content[number] = b"\xff" * len(content[number])
    chain = [record[4:] for record in content[4 : 4 + chain_count]]

    assert [each in kept(b"".join(content)) for each in chain] == [are_found] * chain_count


@pytest.mark.parametrize(("length", "is_doubtful"), [(1000, False), (1001, True)])
def test_a_record_before_a_part_of_the_largest_one_is_good(length: int, is_doubtful: bool) -> None:  # noqa: FBT001
    part = struct.pack(">i", length) + payload(1)

    first = next(iter(find_spans(framed(payload(0)) + part, 1000)))

    assert first == Span(0, RECORD_BYTES, is_kept=True, is_doubtful=is_doubtful)


MIN_NS, MAX_NS = 946_684_800 * 10**9, 0x20 << 56


def header(timestamp_ns: int, message_id: bytes = b"0123456789abcdef") -> bytes:
    return struct.pack(">QH16s", timestamp_ns, 1, message_id)


@pytest.mark.parametrize(
    ("timestamp_ns", "is_found"),
    [(MIN_NS - 1, False), (MIN_NS, True), (MAX_NS - 1, True), (MAX_NS, False)],
)
def test_a_lone_record_has_a_time_of_these_decades(timestamp_ns: int, *, is_found: bool) -> None:
    data = records(0, 2) + b"\xff" * 40 + framed(header(timestamp_ns) + b"?") + b"\xff" * 40

    assert (len(kept(data)) == 3) is is_found


@pytest.mark.parametrize(
    ("top", "message_id", "expected"),
    [
        (0x0D, b"not hex digits!!", True),
        (0x64, b"not hex digits!!", True),
        (0x0C, b"not hex digits!!", False),
        (0x65, b"not hex digits!!", False),
        (0x65, b"0123456789abcdef", True),
        (0x00, b"0123456789abcdeF", False),
        (0x00, b"g123456789abcdef", False),
    ],
)
def test_a_message_has_a_time_or_an_id(top: int, message_id: bytes, *, expected: bool) -> None:
    found = header(top << 56, message_id)

    assert has_message_shape(found) is expected
    assert has_message_shape(found + b"body") is expected
    assert not has_message_shape(found[:-1])


def test_the_first_stranger_among_messages_is_told() -> None:
    good, older, stranger = header(0x17 << 56), header(0x18 << 56), header(0, b"not hex digits!!")

    def find(*headers: bytes) -> int | None:
        starts = [number * HEADER_BYTES for number in range(len(headers))]
        return find_stranger(b"".join(headers), starts)

    assert find(good) is None
    assert find(stranger) == 0
    assert find(good, good, good) is None
    assert find(good, older, good) is None
    assert find(stranger, stranger) == 0
    assert find(good, older, stranger, good, stranger) == 2


def resume_of(path: Path, data: bytes, position: int, max_record_bytes: int = 1000) -> int | None:
    path.write_bytes(data)
    with path.open("rb") as file:
        return find_resume(file.fileno(), position, len(data), max_record_bytes)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3, 4, 5, 511, 512, 513, 3000])
@pytest.mark.parametrize("junk", [b"", b"?", b"\xff" * 31])
def test_records_go_on_behind_zeros_and_junk(tmp_path: Path, zeros: int, junk: bytes) -> None:
    before = records(0, 1) + b"\xff" + junk + bytes(zeros)

    assert resume_of(tmp_path / "segment", before + records(1, 2), 32) == len(before)
    assert resume_of(tmp_path / "segment", before, 32) is None
    assert resume_of(tmp_path / "segment", before + records(1, 1)[:-1], 32) is None


def test_records_are_searched_for_in_larger_and_larger_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskqueue.salvage._SEARCH_BYTES", (100, 400))
    for gap in (1, 60, 90, 100, 130, 350, 400, 450, 2000):
        before = records(0, 1) + b"\xff" * gap

        assert resume_of(tmp_path / "segment", before + records(1, 3), 32) == len(before), gap


def test_a_hole_is_skipped_in_steps_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 7, 100, 128, 1000):
        monkeypatch.setattr("diskqueue.salvage._SKIP_BYTES", step)
        before = records(0, 1) + bytes(500)

        assert resume_of(tmp_path / "segment", before + records(1, 1), 32) == len(before)
        assert resume_of(tmp_path / "segment", before, 32) is None


def test_a_segment_that_is_shorter_than_told_has_no_more_records(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(records(0, 1) + bytes(50))
    with path.open("rb") as file:
        assert find_resume(file.fileno(), 32, 10_000, 1000) is None


@pytest.mark.parametrize(
    ("behind", "is_right"),
    [
        (b"", True),
        (bytes(40), True),  # never written
        (b"\x00\x00\x00\x1c?", True),  # cut off
        (b"\x7f\x00\x00\x00?", True),  # noise: no single bit of a length leads behind it
        (b"\x00\x00\x04\x00" + payload(1), True),  # a damaged length before a header
        (b"?" * 32 + records(1, 1), False),  # a rest of 32 bytes: one bit
        (b"?" * 33 + records(1, 1), True),
        (b"?" * 64 + records(1, 1), False),
    ],
)
def test_a_length_is_doubted_if_one_bit_of_it_left_a_rest(
    tmp_path: Path, behind: bytes, *, is_right: bool
) -> None:
    path = tmp_path / "segment"
    content = records(0, 1) + behind
    path.write_bytes(content)
    # 28 is 11100 in bits: 60 and 92 differ from it in one.
    with path.open("rb") as file:
        found = is_length_right(file.fileno(), 0, 32, len(content), 1000)

    assert found is is_right


def test_a_length_that_has_swallowed_records_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    swallowed = framed(payload(0)[:26] + b"?" * 6 + records(1, 2) + b"??")
    path.write_bytes(swallowed)
    with path.open("rb") as file:
        for stop, is_right in ((len(swallowed), True), (len(swallowed) - 10, False)):
            assert is_length_right(file.fileno(), 0, stop, len(swallowed), 1000) is is_right


@pytest.mark.parametrize("offset", range(-4, 5))
def test_the_rest_of_a_header_is_told_from_a_record_at_any_place(
    tmp_path: Path, offset: int
) -> None:
    """Only where zeros end with a sector: elsewhere a power cut has left no hole."""
    data = records(0, 1) + bytes(475 + offset) + make_cut_header()
    place = len(data) - len(make_cut_header()) + 2

    found = resume_of(tmp_path / "segment", data + b"\xff" * 40, 32, 1 << 20)

    # The length of that record would begin before the sector, and end in it.
    sector = 512 * -(-place // 512)
    assert found == (None if place < sector < place + 4 else place)
