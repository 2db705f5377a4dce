"""Damage in a queue of messages: reading goes on behind it, and no wrong body is handed out."""

import contextlib
import errno
import itertools
import os
import struct
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diskqueue import DiskQueue, envelope
from tests.unit.diskqueue.queue_files import (
    consume,
    framed,
    names,
    segment_path,
    write_metadata,
    write_segment,
)

NOW_NS = 1_790_000_000 * 10**9


def message(number: int, body: bytes) -> bytes:
    return envelope.encode(NOW_NS + number, 0, b"%016x" % (0x189C9E7352E69000 + number), body)


def segment(*bodies: bytes, first: int = 0) -> bytes:
    numbered = enumerate(bodies, start=first)
    return b"".join(framed(message(number, body)) for number, body in numbered)


def starts_of(*bodies: bytes) -> list[int]:
    return [0, *itertools.accumulate(30 + len(body) for body in bodies)]


def open_queue(directory: Path, *, max_bytes_per_file: int = 1 << 20) -> DiskQueue:
    return DiskQueue(directory, "t", holds_messages=True, max_bytes_per_file=max_bytes_per_file)


def bodies_in(queue: DiskQueue) -> list[bytes]:
    return [envelope.decode(payload).body for payload in consume(queue)]


def damaged(directory: Path, content: bytes, position: int, data: bytes) -> DiskQueue:
    """A queue of one completed segment with other bytes somewhere."""
    write_segment(directory, 0, content[:position] + data + content[position + len(data) :])
    write_metadata(directory, f"1\n0,0\n0,{len(content)}\n")
    return open_queue(directory)


BODIES = [b"first", b"the second one", b"x" * 100, b"", b"fifth" * 20, b"last"]


@pytest.mark.parametrize("index", range(len(BODIES)))
@pytest.mark.parametrize("length", [0, -1, 25, 2**31 - 1, 2**24])
def test_an_impossible_length_costs_one_record(tmp_path: Path, index: int, length: int) -> None:
    position = starts_of(*BODIES)[index]

    queue = damaged(tmp_path, segment(*BODIES), position, struct.pack(">i", length))

    assert bodies_in(queue) == BODIES[:index] + BODIES[index + 1 :]
    assert "000000.dat.bad" in names(tmp_path)


@pytest.mark.parametrize("index", range(len(BODIES)))
@pytest.mark.parametrize("bit", range(20))
def test_a_flipped_bit_in_a_length_serves_no_wrong_body(
    tmp_path: Path, index: int, bit: int
) -> None:
    position = starts_of(*BODIES)[index]
    content = segment(*BODIES)
    (length,) = struct.unpack_from(">i", content, position)

    queue = damaged(tmp_path, content, position, struct.pack(">i", length ^ 1 << bit))

    assert bodies_in(queue) == BODIES[:index] + BODIES[index + 1 :]


def test_zeros_from_the_middle_of_a_body_on(tmp_path: Path) -> None:
    content = segment(*BODIES)
    start = starts_of(*BODIES)[2] + 50

    queue = damaged(tmp_path, content, start, bytes(len(content) - start))

    # The format has no checksum: the body that turned into zeros in part looks like any other.
    assert bodies_in(queue) == [*BODIES[:2], b"x" * 20 + bytes(80)]
    assert "000000.dat.bad" in names(tmp_path)


def test_a_hole_between_records(tmp_path: Path) -> None:
    content = segment(*BODIES)
    starts = starts_of(*BODIES)

    queue = damaged(tmp_path, content, starts[1], bytes(starts[3] - starts[1]))

    assert bodies_in(queue) == [BODIES[0], *BODIES[3:]]


def test_a_hole_as_long_as_a_segment_is_skipped_fast(tmp_path: Path) -> None:
    content = segment(b"before") + bytes(30 * 1024 * 1024) + segment(b"after", first=1)

    queue = damaged(tmp_path, content, 0, b"")

    assert bodies_in(queue) == [b"before", b"after"]


def test_damage_in_several_places(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 50 for number in range(100)]
    content = bytearray(segment(*bodies))
    starts = starts_of(*bodies)
    for index in (10, 11, 50, 99):
        content[starts[index]] = 0xFF

    queue = damaged(tmp_path, bytes(content), 0, b"")

    lost = [bodies[index] for index in (10, 11, 50, 99)]
    assert bodies_in(queue) == [body for body in bodies if body not in lost]
    assert names(tmp_path).count("000000.dat.bad") == 1
    assert "000000.dat.bad.1" not in names(tmp_path)


def test_what_looks_like_a_record_in_length_only_is_no_message(tmp_path: Path) -> None:
    """A body of numbers, entered through a length that shrank."""
    body = struct.pack(">26i", *range(40, 66)) * 10
    content = segment(b"before", body, b"after")
    position = starts_of(b"before")[-1]
    assert content[position : position + 4] == b"\x00\x00\x04\x2a"

    queue = damaged(tmp_path, content, position, struct.pack(">i", 0x2A))

    assert bodies_in(queue) == [b"before", b"after"]


@pytest.mark.parametrize("behind", [[], [b"c", b"d"]])
def test_a_record_that_is_no_message_is_left_out(tmp_path: Path, behind: list[bytes]) -> None:
    content = segment(b"a", b"b") + framed(b"\xff" * 40) + segment(*behind, first=2)

    assert bodies_in(damaged(tmp_path, content, 0, b"")) == [b"a", b"b", *behind]
    assert "000000.dat.bad" in names(tmp_path)


def test_a_damaged_time_or_id_does_not_cost_the_message(tmp_path: Path) -> None:
    content = segment(*BODIES)
    starts = starts_of(*BODIES)
    for position, data in ((starts[1] + 4, b"\xff"), (starts[2] + 20, b"\x80")):
        content = content[:position] + data + content[position + 1 :]

    assert bodies_in(damaged(tmp_path, content, 0, b"")) == BODIES


def test_damage_under_the_writer_does_not_reach_what_is_appended_later(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([message(number, body) for number, body in enumerate(BODIES)])
    fd = os.open(segment_path(tmp_path, 0), os.O_WRONLY)
    os.pwrite(fd, b"\xff", starts_of(*BODIES)[2])
    os.close(fd)

    first = bodies_in(queue)
    queue.put([message(10, b"later")])

    assert first == BODIES[:2] + BODIES[3:]
    assert bodies_in(queue) == [b"later"]


def test_the_damaged_file_is_kept_even_if_a_restart_does_not_see_the_damage(tmp_path: Path) -> None:
    content = segment(*BODIES)
    queue = damaged(tmp_path, content, starts_of(*BODIES)[1], b"\xff")
    batch = queue.read(100, 1 << 20)
    assert batch is not None
    behind = queue.read(100, 1 << 20)
    assert behind is not None
    queue.commit(range(3))
    queue.close()
    assert "000000.dat.bad" in names(tmp_path)

    again = open_queue(tmp_path)
    assert bodies_in(again) == BODIES[4:]
    again.close()

    kept = tmp_path / "t.diskqueue.000000.dat.bad"
    assert kept.read_bytes()[36:] == content[36:]


def test_foreign_ids_are_abandoned_at_the_damage_as_ever(tmp_path: Path) -> None:
    foreign = [envelope.encode(NOW_NS, 0, b"not hex digits!!", body) for body in BODIES]
    content = b"".join(map(framed, foreign))

    queue = damaged(tmp_path, content, starts_of(*BODIES)[2], b"\xff")

    assert bodies_in(queue) == BODIES[:2]
    assert "000000.dat.bad" in names(tmp_path)


def test_file_systems_without_links_rename_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_source: str, _target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    queue = damaged(tmp_path, segment(*BODIES), starts_of(*BODIES)[1], b"\xff")

    assert bodies_in(queue) == [BODIES[0], *BODIES[2:]]
    queue.close()
    assert "000000.dat.bad" in names(tmp_path)
    assert "000000.dat" not in names(tmp_path)


def test_reading_by_small_pieces_sees_the_same(tmp_path: Path) -> None:
    content = segment(*BODIES)
    (length,) = struct.unpack_from(">i", content, starts_of(*BODIES)[2])
    position = starts_of(*BODIES)[2]
    queue = damaged(tmp_path, content, position, struct.pack(">i", length ^ 64))

    found = []
    while (batch := queue.read(1, 40)) is not None:
        found += [envelope.decode(payload).body for payload in batch]

    assert found == BODIES[:2] + BODIES[3:]


def break_blocks(patch: pytest.MonkeyPatch, *blocks: int) -> None:
    """Have the disk fail to read these blocks of any file."""
    pread = os.pread

    def read(fd: int, size: int, offset: int) -> bytes:
        if any(offset < (block + 1) * 4096 and offset + size > block * 4096 for block in blocks):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    patch.setattr(os, "pread", read)


def read_all(queue: DiskQueue) -> list[bytes]:
    """All bodies up to a place that cannot be read."""
    found: list[bytes] = []
    with contextlib.suppress(OSError):
        while (batch := queue.read(100, 1 << 18)) is not None:
            found += [envelope.decode(payload).body for payload in batch]
    return found


def test_only_the_records_in_blocks_that_cannot_be_read_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"%04d" % number * 64 for number in range(100)]
    queue = damaged(tmp_path, segment(*bodies), 0, b"")
    starts = starts_of(*bodies)
    break_blocks(monkeypatch, 2, 3)
    lost = [i for i in range(100) if starts[i] < 4 * 4096 and starts[i + 1] > 2 * 4096]

    before = read_all(queue)
    assert before == bodies[: lost[0]]
    assert read_all(queue) == [], "it may be readable again soon"
    queue.skip_unreadable()

    assert read_all(queue) == bodies[lost[-1] + 1 :]
    assert "000000.dat.bad" in names(tmp_path)
    queue.put([message(1000, b"goes on")])
    assert read_all(queue) == [b"goes on"]


def test_a_disk_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"%04d" % number * 64 for number in range(100)]
    queue = damaged(tmp_path, segment(*bodies), 0, b"")
    with monkeypatch.context() as patch:
        break_blocks(patch, *range(100))
        assert read_all(queue) == []
        queue.skip_unreadable()
        assert read_all(queue) == []

    assert read_all(queue) == bodies
    assert not any(name.endswith(".bad") for name in names(tmp_path))


@settings(max_examples=150)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    seed=st.binary(min_size=1, max_size=8),
    place=st.integers(0, 10_000),
    noise=st.one_of(
        st.binary(min_size=1, max_size=60), st.integers(1, 400).map(lambda count: bytes(count))
    ),
)
def test_whatever_is_damaged_the_rest_is_delivered(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    seed: bytes,
    place: int,
    noise: bytes,
) -> None:
    directory = tmp_path_factory.mktemp("queue")
    bodies = [(b"%d:" % number + seed * 200)[:size] for number, size in enumerate(sizes)]
    content = segment(*bodies)
    starts = starts_of(*bodies)
    place %= len(content)
    noise = noise[: len(content) - place]
    # A record is touched if one of its bytes is another one now.
    now = content[:place] + noise + content[place + len(noise) :]
    touched = {
        index
        for index, (start, end) in enumerate(itertools.pairwise(starts))
        if now[start:end] != content[start:end]
    }

    # A length that grew by exactly the records behind it cannot be recognised.
    for index in touched:
        (length,) = struct.unpack_from(">i", now, starts[index])
        assume(starts[index] + 4 + length not in starts[index + 2 :])

    queue = damaged(directory, content, place, noise)
    found = [envelope.decode(payload) for payload in consume(queue)]

    expected = {message(number, body) for number, body in enumerate(bodies)}
    intact = [index for index in range(len(bodies)) if index not in touched]
    # Its neighbour is doubted if it may have the wrong length, and salvage has it then.
    doubted = min(touched) - 1 if touched else -1
    delivered = {envelope.encode(*each) for each in found}
    for index in intact:
        if index != doubted:
            assert message(index, bodies[index]) in delivered
    strangers = delivered - expected
    assert len(strangers) <= len(touched)


@pytest.mark.parametrize("has_checksums", [False, True])
@pytest.mark.parametrize("size", [40, 700, 4000, 9000])
@pytest.mark.parametrize("bad", [(0,), (1,), (2, 3), (5,)])
def test_records_around_any_unreadable_blocks_are_delivered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    bad: tuple[int, ...],
    *,
    has_checksums: bool,
) -> None:
    """Also if the reader stands in the middle of a block when it comes there."""
    count = 7 * 4096 // size
    bodies = [(b"%04d" % number * size)[: size - 30] for number in range(count)]
    write_segment(tmp_path, 0, segment(*bodies))
    write_metadata(tmp_path, f"{count}\n0,0\n0,{count * size}\n")
    queue = DiskQueue(tmp_path, "t", holds_messages=True, has_checksums=has_checksums)
    starts = starts_of(*bodies)
    break_blocks(monkeypatch, *bad)

    found: list[bytes] = []
    while True:
        try:
            batch = queue.read(100, 1 << 18)
        except OSError:
            queue.skip_unreadable()
            continue
        if batch is None:
            break
        found += [envelope.decode(payload).body for payload in batch]

    touched = {
        index
        for index, (start, end) in enumerate(itertools.pairwise(starts))
        if any(start < (block + 1) * 4096 and end > block * 4096 for block in bad)
    }
    assert found == [body for index, body in enumerate(bodies) if index not in touched]


def test_records_that_checksums_deny_for_lack_of_a_block_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte of them is wrong as far as one can tell: the disk may come back."""
    bodies = [b"a" * 6000, b"b" * 50, b"c" * 50]
    queue = DiskQueue(tmp_path, "t", holds_messages=True, has_checksums=True)
    queue.put([message(number, body) for number, body in enumerate(bodies)])
    with monkeypatch.context() as patch:
        break_blocks(patch, 1)
        with pytest.raises(OSError, match="Input/output"):
            queue.read(10, 1 << 18)

    assert read_all(queue) == bodies
    assert queue.checksum_failures.count == 0
    queue.close()


def test_blocks_that_cannot_be_read_are_skipped_before_the_first_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"%04d" % number * 64 for number in range(100)]
    queue = damaged(tmp_path, segment(*bodies), 0, b"")
    break_blocks(monkeypatch, 0)

    queue.skip_unreadable()

    found = read_all(queue)
    assert found == bodies[-len(found) :]
    assert len(found) > 80


def test_damage_that_only_shapes_show_leaves_the_depth_to_be_corrected(tmp_path: Path) -> None:
    content = segment(*BODIES)
    write_segment(tmp_path, 0, content[:36] + b"\xff" + content[37:])
    write_metadata(tmp_path, f"{len(BODIES)}\n0,0\n0,{len(content)}\n")
    queue = open_queue(tmp_path)
    depths = [queue.depth]
    while queue.read(1, 1 << 18) is not None:
        depths.append(queue.depth)

    # How many were lost cannot be told before the end.
    assert depths == [6, 5, 4, 3, 2, 0]


@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_blocks_up_to_the_end_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Behind them no block shows that the disk is there, though the segment ends with a block."""
    size = 4096
    bodies = [(b"%04d" % number * size)[: size - 30] for number in range(3 + count)]
    queue = damaged(tmp_path, segment(*bodies), 0, b"")
    with monkeypatch.context() as patch:
        break_blocks(patch, *range(3, 3 + count))
        assert read_all(queue) == bodies[:3]
        queue.skip_unreadable()
        assert read_all(queue) == []

    assert read_all(queue) == bodies[3:]


@pytest.mark.parametrize("count", [1, 62, 63])
def test_so_many_blocks_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    size = 4096
    bodies = [(b"%04d" % number * size)[: size - 30] for number in range(5 + count)]
    queue = damaged(tmp_path, segment(*bodies), 0, b"")
    break_blocks(monkeypatch, *range(3, 3 + count))
    assert read_all(queue) == bodies[:3]

    queue.skip_unreadable()

    assert read_all(queue) == bodies[3 + count :]
