"""Any damage of a segment or of its checksum file, against the records that were written."""

from collections.abc import Collection
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.checksums import checks as checks_module
from diskqueue.checksums import entries
from diskqueue.checksums.checks import Clearance, Denial, SegmentChecks
from tests.unit.diskqueue.queue_files import framed, payload

SEED = entries.make_seed("t", 0)
GROUPS = st.lists(
    st.lists(st.sampled_from([26, 27, 40, 90, 700]), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


class Change(NamedTuple):
    """A change of a segment at a place, a share of its size."""

    kind: str
    place: float
    size: int


CHANGES = st.lists(
    st.builds(
        Change,
        st.sampled_from(["flip", "insert", "remove", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([1, 2, 4, 17, 44, 300]),
    ),
    max_size=3,
)


def make_stranger(number: int, size: int) -> bytes:
    return (b"no message %04d" % number).ljust(size, b".")


class Segment:
    """Records with their checksums, and how they look when they were damaged."""

    def __init__(
        self, groups: list[list[int]], doubts: Collection[int] = (), *, are_messages: bool = True
    ) -> None:
        """Args:
        doubts: the groups before which an entry says that no sync has covered some bytes.
        are_messages: False for records that no shape tells, so that only entries find them.
        """
        make = payload if are_messages else make_stranger
        self.records: list[bytes] = []
        self.checksums = b""
        start = 0
        for number, sizes in enumerate(groups):
            if number in doubts:
                self.checksums += entries.encode_doubt(SEED, start, 100)
            first = len(self.records)
            group = [framed(make(first + n, size)) for n, size in enumerate(sizes)]
            data = b"".join(group)
            lengths = [len(record) for record in group]
            self.checksums += entries.encode_in_python(SEED, start, data, lengths)
            start += len(data)
            self.records += group
        self.data = b"".join(self.records)

    def change(self, change: Change) -> None:
        place = int(change.place * len(self.data))
        before, behind = self.data[:place], self.data[place:]
        match change.kind:
            case "flip":
                self.data = before + bytes([behind[0] ^ 4]) + behind[1:] if behind else before
            case "insert":
                self.data = before + b"#" * change.size + behind
            case "remove":
                self.data = before + behind[change.size :]
            case "cut":
                self.data = before
            case _:
                raise ValueError(change.kind)

    def find_intact(self) -> list[bytes]:
        """Return the records that stand where they stood."""
        found = []
        start = 0
        for record in self.records:
            # Its length is repaired.
            rest = record[4:]
            if self.data[start + 4 : start + len(record)] == rest:
                found.append(record)
            start += len(record)
        return found

    def open_checks(self, *, is_marked: bool = True, position: int = 0) -> SegmentChecks:
        return SegmentChecks(
            lambda size, offset: self.checksums[offset : offset + size],
            lambda size, offset: self.data[offset : offset + size],
            *(SEED, 2**20),
            have_same_mark=lambda: is_marked,
            position=position,
            size_bytes=len(self.checksums),
        )

    def walk(self, buffer_bytes: int) -> tuple[bytes, list[bytes], int]:
        """Return the bytes that are cleared by checksums, those cleared without, and the denied."""
        checks = self.open_checks()
        cleared, uncovered, denied_bytes = b"", [], 0
        position, size = 0, buffer_bytes
        while position < len(self.data):
            data = self.data[position : position + size]
            is_whole = position + len(data) >= len(self.data)
            found = checks.clear(data, position, is_whole=is_whole)
            size = buffer_bytes
            if isinstance(found, Denial):
                assert found.resume > position
                assert found.record_count >= 1
                denied_bytes += min(found.resume, len(self.data)) - position
                position = found.resume
            elif found.needed_bytes:
                assert found.needed_bytes > len(data)
                size = found.needed_bytes
            else:
                assert position < found.end <= position + len(data)
                content = found.data[: found.end - position]
                if found.is_covered:
                    cleared += content
                else:
                    uncovered.append(content)
                position = found.end
        return cleared, uncovered, denied_bytes


def cut_up(data: bytes) -> list[bytes]:
    """Cut whole records apart."""
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:size])
        assert len(found[-1]) == size
        data = data[size:]
    return found


@given(
    groups=GROUPS,
    doubts=st.sets(st.integers(0, 4)),
    changes=CHANGES,
    buffer_bytes=st.sampled_from([1, 30, 100, 1000, 1 << 20]),
    are_messages=st.booleans(),
)
def test_each_record_that_is_intact_is_cleared_and_no_other(
    groups: list[list[int]],
    doubts: set[int],
    changes: list[Change],
    buffer_bytes: int,
    are_messages: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    segment = Segment(groups, doubts, are_messages=are_messages)
    for change in changes:
        segment.change(change)

    cleared, uncovered, denied_bytes = segment.walk(buffer_bytes)

    found = cut_up(cleared)
    assert set(found) <= set(segment.records)
    assert set(found) >= set(segment.find_intact())
    assert len(cleared) + sum(map(len, uncovered)) + denied_bytes == len(segment.data)
    if not changes:
        assert (found, uncovered, denied_bytes) == (segment.records, [], 0)
    # No entry is about bytes behind all of them, as long as no record was found elsewhere.
    assert sum(map(len, uncovered)) <= sum(it.size for it in changes if it.kind == "insert")


@given(
    groups=GROUPS,
    doubts=st.sets(st.integers(0, 4)),
    place=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(["insert", "remove"]),
)
def test_records_that_have_moved_are_cleared_and_all_else_is_denied(
    groups: list[list[int]], doubts: set[int], place: float, kind: str
) -> None:
    segment = Segment(groups, doubts)
    segment.change(Change(kind, place, 9))

    cleared, uncovered, _ = segment.walk(1 << 20)

    found = cut_up(cleared)
    lost = [record for record in segment.records if record not in found]
    assert len(lost) <= 2  # bytes are removed from two neighbours at most
    assert all(record not in segment.data for record in lost)
    assert found == [record for record in segment.records if record in found]
    assert not uncovered or lost == segment.records[-len(lost) :]


@pytest.mark.parametrize("garbage_bytes", [1, 4_000, 9_000, 20_000, 100_000])
@pytest.mark.parametrize("is_like_an_entry", [False, True])
def test_entries_behind_garbage_are_found(
    monkeypatch: pytest.MonkeyPatch, garbage_bytes: int, *, is_like_an_entry: bool
) -> None:
    """However they lie to the parts in which the file is read."""
    monkeypatch.setattr(checks_module, "_READ_BYTES", 10_000)
    magic = entries.MAGIC if is_like_an_entry else b""
    first_bytes = entries.MIN_ENTRY_BYTES
    for shift in range(0, 72, 9):
        segment = Segment([[40], [40, 40], [40]])
        garbage = magic + b"?" * (garbage_bytes + shift)
        head, tail = segment.checksums[:first_bytes], segment.checksums[first_bytes:]
        segment.checksums = head + garbage + tail

        assert segment.walk(1 << 20) == (segment.data, [], 0)
        # And a record that stands elsewhere is known, though its entry is behind the garbage.
        segment.data = b"#" * 44 + segment.data
        assert segment.walk(1 << 20) == (b"".join(segment.records), [], 44)


@given(groups=GROUPS, index=st.integers(0, 29))
def test_a_walk_may_begin_at_any_record(groups: list[list[int]], index: int) -> None:
    segment = Segment(groups)
    index %= len(segment.records)
    position = sum(len(record) for record in segment.records[:index])
    checks = segment.open_checks(position=position)

    found = checks.clear(segment.data[position:], position, is_whole=True)
    while isinstance(found, Clearance) and found.end < len(segment.data):
        assert found.is_covered
        end = found.end
        found = checks.clear(segment.data[end:], end, is_whole=True)

    assert isinstance(found, Clearance)
    assert found.is_covered


@pytest.mark.parametrize("are_messages", [False, True])
@pytest.mark.parametrize("groups", [[[40] * 4], [[90, 27], [26, 40, 90]], [[40], [40], [40]]])
def test_damage_of_one_record_costs_no_other(
    groups: list[list[int]], *, are_messages: bool
) -> None:
    """Be they known by their shape or only by their entries."""
    for place in range(len(Segment(groups).data)):
        segment = Segment(groups, are_messages=are_messages)
        records = segment.records
        segment.data = (
            segment.data[:place] + bytes([segment.data[place] ^ 1]) + segment.data[place + 1 :]
        )

        cleared, uncovered, denied_bytes = segment.walk(1 << 20)

        intact = segment.find_intact()
        assert len(intact) >= len(records) - 1
        assert cut_up(cleared) == intact, place
        assert (uncovered, denied_bytes) == ([], len(segment.data) - sum(map(len, intact))), place
