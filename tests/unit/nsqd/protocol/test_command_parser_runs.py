"""Each way of cutting up bytes at once: what it finds, where it stops, what it leaves alone."""

import shutil
import sys
from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqd.protocol.command_parser import (
    read_sized,
    read_sized_in_python,
    split_equal,
    split_ids,
    split_publishes,
)

LINE = b"PUB t\n"
ID = b"0123456789abcdef"


def sized(*bodies: bytes) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


# --- PUBs of one size


def publishes(*bodies: bytes) -> bytes:
    return b"".join(LINE + sized(body) for body in bodies)


def test_equal_publishes_are_split() -> None:
    data = b"before" + publishes(b"abc", b"def", b"ghi") + b"after"

    bodies = split_publishes(data, 6, LINE + pack(">i", 3), 3, 3)

    assert bodies == [b"abc", b"def", b"ghi"]


def test_no_more_publishes_are_split_than_asked_for() -> None:
    data = publishes(b"abc", b"def", b"ghi")

    assert split_publishes(data, 0, LINE + pack(">i", 3), 3, 2) == [b"abc", b"def"]


@pytest.mark.parametrize(
    "bodies",
    [
        [b"abc", b"defg"],
        [b"abc", b"de"],
        [b"abc", b"de", b"fghi"],  # as long together as three of three
    ],
)
def test_publishes_of_other_sizes_are_no_run(bodies: list[bytes]) -> None:
    data = publishes(*bodies) + b"NOP\n"

    assert split_publishes(data, 0, LINE + pack(">i", 3), 3, len(bodies)) == []


def test_a_start_within_a_body_is_no_start() -> None:
    start = LINE + pack(">i", 10)
    bodies = [start, b"0123456789", start]

    assert split_publishes(publishes(*bodies), 0, start, 10, 3) == bodies
    assert split_publishes(b"x" + publishes(*bodies), 1, start, 10, 3) == bodies
    assert split_publishes(b"x" + publishes(*bodies), 0, start, 10, 3) == []


# --- lines and sizes


def read(
    data: bytes,
    *,
    line: bytes = LINE,
    end: int | None = None,
    max_count: int = 99,
    max_size: int = 5,
) -> tuple[list[bytes], int]:
    stop = len(data) if end is None else end
    bounds = {"max_count": max_count, "max_size": max_size}
    found = read_sized(data, 0, stop, line=line, **bounds)
    assert read_sized_in_python(data, 0, stop, line=line, **bounds) == found
    return found


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_loop_over_messages_is_compiled() -> None:
    assert read_sized is not read_sized_in_python


@given(
    data=st.lists(
        st.sampled_from(
            [LINE, b"PUB t", pack(">i", 3), pack(">i", -1), pack(">i", 0), b"abc", b"a"]
        )
        | st.binary(max_size=6),
        max_size=12,
    ).map(b"".join),
    cut=st.integers(0, 8),
    position=st.integers(0, 12),
    line=st.sampled_from([LINE, b""]),
    max_count=st.integers(0, 5),
    max_size=st.integers(0, 8),
)
@example(data=sized(b"abc", b"abc", b"a"), cut=0, position=0, line=b"", max_count=5, max_size=8)
@example(data=b"", cut=0, position=sys.maxsize, line=LINE, max_count=5, max_size=8)
def test_both_loops_read_the_same(
    data: bytes, cut: int, position: int, line: bytes, max_count: int, max_size: int
) -> None:
    end = max(len(data) - cut, 0)
    bounds = {"max_count": max_count, "max_size": max_size}

    found = read_sized(data, position, end, line=line, **bounds)

    assert found == read_sized_in_python(data, position, end, line=line, **bounds)


def test_publishes_of_any_size_are_read_up_to_the_end() -> None:
    data = publishes(b"a", b"abcde", b"ab")

    assert read(data) == ([b"a", b"abcde", b"ab"], len(data))
    assert read(data + b"NOP\n") == ([b"a", b"abcde", b"ab"], len(data))
    assert read(data, max_count=2) == ([b"a", b"abcde"], len(publishes(b"a", b"abcde")))


@pytest.mark.parametrize(
    "after",
    [
        LINE + pack(">i", 0),
        LINE + pack(">i", -1),
        LINE + sized(b"abcdef"),  # beyond max_size
        LINE + sized(b"abc")[:-1],  # not all there
        LINE + b"\x00\x00\x00",
        LINE[:-1],
        b"PUB u\n" + sized(b"abc"),
    ],
)
def test_reading_stops_before_a_publish_that_is_not_whole_or_wrong(after: bytes) -> None:
    good = publishes(b"ab")

    assert read(good + after) == ([b"ab"], len(good))


def test_messages_are_read_only_within_their_bounds() -> None:
    data = sized(b"ab", b"cd", b"ef")

    for end in range(12, 18):
        assert read(data, line=b"", end=end) == ([b"ab", b"cd"], 12)
    assert read(data, line=b"", end=18) == ([b"ab", b"cd", b"ef"], 18)


# --- messages of one size


def split(data: bytes, *, end: int | None = None, max_count: int = 99) -> list[bytes]:
    stop = len(data) if end is None else end
    return split_equal(data, 0, stop, max_count=max_count, max_size=300)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 300])
def test_equal_messages_are_split(size: int) -> None:
    bodies = [bytes([number]) * size for number in range(5)]
    data = sized(*bodies)

    assert split(data) == bodies
    assert split(data + sized(bodies[0])[:-1]) == bodies
    assert split(data, max_count=4) == bodies[:4]
    assert split(data, max_count=2) == bodies[:2]
    assert split(data, end=len(data) - 1) == bodies[:4]


def test_one_message_is_no_run() -> None:
    assert split(sized(b"ab")) == []
    assert split(sized(b"ab", b"cd"), max_count=1) == []
    assert split(b"\x00\x00") == []


@pytest.mark.parametrize("size", [301, 0, -1])
def test_a_wrong_size_is_no_run(size: int) -> None:
    assert split((pack(">i", size) + bytes(max(size, 0))) * 4) == []


@pytest.mark.parametrize("byte", range(4))
def test_every_byte_of_every_size_counts(byte: int) -> None:
    data = bytearray(sized(*[b"ab"] * 4))
    data[12 + byte] ^= 1

    assert split(bytes(data)) == []


# --- FINs


def fins(*ids: bytes) -> bytes:
    return b"".join(b"FIN " + message_id + b"\n" for message_id in ids)


def test_rows_of_finishes_are_split() -> None:
    ids = [b"%016d" % number for number in range(5)]

    assert split_ids(fins(*ids), 0, b"FIN ", b"\n", 99) == ids
    assert split_ids(b"NOP\n" + fins(*ids), 4, b"FIN ", b"\n", 99) == ids
    assert split_ids(fins(*ids), 0, b"FIN ", b"\n", 3) == ids[:3]
    assert split_ids(fins(*ids)[:-1], 0, b"FIN ", b"\n", 99) == ids[:4]
    assert split_ids(fins(*ids) + b"RDY 1\n", 0, b"FIN ", b"\n", 99) == ids


def test_rows_may_end_with_parameters() -> None:
    ids = [b"%016d" % number for number in range(5)]
    rows = b"".join(b"REQ " + message_id + b" 10\r\n" for message_id in ids)

    assert split_ids(rows, 0, b"REQ ", b" 10\r\n", 99) == ids
    assert split_ids(rows, 0, b"REQ ", b" 10\r\n", 2) == ids[:2]
    assert split_ids(rows[:-1], 0, b"REQ ", b" 10\r\n", 99) == ids[:4]
    for other in (b" 11\r\n", b" 1 \r\n", b" 10 \n"):  # in the first, a middle and the last row
        for index in (0, 2, 4):
            start = index * len(rows) // 5 + len(b"REQ ") + 16
            damaged = rows[:start] + other + rows[start + len(other) :]
            assert split_ids(damaged, 0, b"REQ ", b" 10\r\n", 99) is None


def test_a_finish_that_is_not_whole_is_none() -> None:
    assert split_ids(fins(ID)[:-1], 0, b"FIN ", b"\n", 99) == []
    assert split_ids(b"FIN " + ID + b"\r\n", 0, b"FIN ", b"\n", 99) == []


@pytest.mark.parametrize(
    "row",
    [
        b"FIN 0123456\n89abcdef\n",
        b"FIN \n123456789abcdef\n",
        b"FIN 0123456789abcd \n\n",
        b"FIN 01234 6789abcdef\n",
        b"FIN 0123456789abcde\r\n",
        b"RDY 0000000000000001\n",
        b"FINx0123456789abcdef\n",
    ],
)
def test_other_bytes_in_a_row_are_no_run(row: bytes) -> None:
    assert len(row) == 21

    assert split_ids(fins(ID) * 2 + row + fins(ID), 0, b"FIN ", b"\n", 99) is None
