"""Which bytes of a segment can be believed."""

import random
from collections.abc import Sequence

import pytest

from diskqueue.checksums import entries
from diskqueue.checksums.checks import Clearance, Denial, SegmentChecks, find_torn
from tests.unit.diskqueue.queue_files import frame_all, payload

pytestmark = pytest.mark.usefixtures("closes_files")

SEED = entries.make_seed("t", 0)
SIZE = 44


def write(groups: Sequence[Sequence[int]], start: int = 0, first: int = 0) -> tuple[bytes, bytes]:
    """A segment and its checksums: an append for each group of message sizes."""
    segment, checksums = b"", b""
    number = first
    for sizes in groups:
        data, lengths = frame_all([payload(number + n, size) for n, size in enumerate(sizes)])
        checksums += entries.encode(SEED, start + len(segment), data, lengths)
        segment += data
        number += len(sizes)
    return segment, checksums


def open_checks(segment: bytes, checksums: bytes, position: int = 0) -> SegmentChecks:
    return SegmentChecks(
        lambda size, offset: checksums[offset : offset + size],
        lambda size, offset: segment[offset : offset + size],
        SEED,
        2**20,
        position=position,
        size_bytes=len(checksums),
    )


def walk(segment: bytes, checksums: bytes) -> tuple[bytes, list[int], int]:
    """The bytes that are cleared, where records are denied, and how many bytes are uncovered."""
    checks = open_checks(segment, checksums)
    position = uncovered = 0
    cleared = b""
    denied = []
    while position < len(segment):
        found = checks.clear(segment[position:], position, is_whole=True)
        if isinstance(found, Denial):
            denied.append(position)
            position = found.resume
            continue
        cleared += found.data[: found.end - position]
        uncovered += 0 if found.is_covered else found.end - position
        position = found.end
    return cleared, denied, uncovered


def test_what_fits_is_cleared_in_one_go() -> None:
    segment, checksums = write([[40], [40, 40, 40], [40]])

    found = open_checks(segment, checksums).clear(segment, 0, is_whole=True)

    assert found == Clearance(len(segment), segment, is_covered=True)


def test_buffer_that_cuts_an_append_is_cleared_before_it() -> None:
    segment, checksums = write([[40], [40, 40]])
    checks = open_checks(segment, checksums)

    found = checks.clear(segment[:100], 0, is_whole=False)
    assert isinstance(found, Clearance)
    assert found.end == SIZE
    more = checks.clear(segment[SIZE:100], SIZE, is_whole=False)
    assert isinstance(more, Clearance)
    assert more.needed_bytes == 2 * SIZE


@pytest.mark.parametrize("place", [5, 13, 20, 35, 43])
def test_exactly_the_damaged_record_of_an_append_is_denied(place: int) -> None:
    segment, checksums = write([[40, 40, 40], [40]])
    damaged = bytearray(segment)
    damaged[SIZE + place] ^= 4

    cleared, denied, _ = walk(bytes(damaged), checksums)

    assert cleared == segment[:SIZE] + segment[2 * SIZE :]
    assert denied == [SIZE]


@pytest.mark.parametrize("place", range(4))
def test_damaged_length_is_repaired(place: int) -> None:
    segment, checksums = write([[40, 40, 40], [40]])
    damaged = bytearray(segment)
    damaged[SIZE + place] ^= 4

    assert walk(bytes(damaged), checksums)[:2] == (segment, [])


def test_length_that_grew_by_whole_records_is_repaired() -> None:
    segment, checksums = write([[40], [40], [40]])
    damaged = (40 + SIZE).to_bytes(4, "big") + segment[4:]

    assert walk(damaged, checksums)[:2] == (segment, [])


def test_records_behind_inserted_bytes_are_found() -> None:
    segment, checksums = write([[40] * 10])
    damaged = segment[: 3 * SIZE + 9] + b"inserted" + segment[3 * SIZE + 9 :]

    cleared, denied, _ = walk(damaged, checksums)

    assert cleared == segment[: 3 * SIZE] + segment[4 * SIZE :]
    assert denied


@pytest.mark.parametrize("count", [1, 2, 30])
def test_records_are_found_right_behind_inserted_bytes(count: int) -> None:
    segment, checksums = write([[40] * 10])
    damaged = segment[: 3 * SIZE] + b"\xff" * count + segment[3 * SIZE :]

    cleared, denied, uncovered = walk(damaged, checksums)

    assert (cleared, denied, uncovered) == (segment, [3 * SIZE], 0)


def test_bytes_without_an_entry_are_uncovered_and_end_at_the_next() -> None:
    segment, checksums = write([[40], [40]], start=2 * SIZE, first=2)
    segment = write([[40, 40]])[0] + segment
    checks = open_checks(segment, checksums)

    found = checks.clear(segment, 0, is_whole=True)

    assert found == Clearance(2 * SIZE, segment, is_covered=False, piece_end=2 * SIZE)
    assert checks.find_next_covered(0) == 2 * SIZE


def test_checksums_of_other_records_say_nothing() -> None:
    _, stale = write([[40], [50]])
    segment, _ = write([[60], [26]], first=50)

    assert walk(segment, stale) == (segment, [], len(segment))
    assert open_checks(segment, stale).find_next_covered(0) is None
    assert not open_checks(segment, stale).is_of_segment()


def test_checksums_are_those_of_a_segment_of_which_only_the_end_is_left() -> None:
    # More than the entries of one read are about, and than is searched for records that moved.
    segment, checksums = write([[1000] * 1000] * 10)
    left = 1000 * 1004
    damaged = bytes(len(segment) - left) + segment[-left:]

    assert open_checks(damaged, checksums).is_of_segment()


def test_newer_of_two_entries_counts() -> None:
    old, stale = write([[40], [200]])
    new, fresh = write([[60]], start=SIZE, first=50)
    segment = old[:SIZE] + new

    assert walk(segment, stale + fresh)[:2] == (segment, [])


def test_damaged_entries_leave_their_records_uncovered() -> None:
    segment, checksums = write([[40], [40], [40]])
    damaged = checksums[:32] + bytes(32) + checksums[64:]

    assert walk(segment, damaged) == (segment, [], SIZE)


@pytest.mark.parametrize("number", [1, 2_000, 7_777, 15_000, 19_990])
def test_place_in_a_long_file_is_found_without_reading_all_of_it(number: int) -> None:
    segment, checksums = write([[40]] * 20_000)
    position = number * SIZE
    reads = []

    def read_checks(size: int, offset: int) -> bytes:
        reads.append(offset)
        return checksums[offset : offset + size]

    checks = SegmentChecks(
        read_checks,
        lambda size, offset: segment[offset : offset + size],
        SEED,
        2**20,
        position=position,
        size_bytes=len(checksums),
    )
    found = checks.clear(segment[position : position + 10 * SIZE], position, is_whole=False)

    assert isinstance(found, Clearance)
    assert (found.end, found.is_covered) == (position + 10 * SIZE, True)
    assert len(reads) < 10


def test_reader_in_the_middle_of_an_append_checks_the_rest() -> None:
    segment, checksums = write([[40] * 5])
    damaged = segment[:-1] + b"\0"
    position = 2 * SIZE

    found = open_checks(damaged, checksums, position).clear(
        damaged[position:], position, is_whole=True
    )

    assert isinstance(found, Clearance)
    assert found.end == 4 * SIZE


class TestTorn:
    """A sector that a power cut has left out."""

    DATA = random.Random(1).randbytes(4096).replace(b"\0", b"1")

    @pytest.mark.parametrize("sector", range(8))
    def test_a_lost_sector_is_seen(self, sector: int) -> None:
        start = sector * 512
        data = self.DATA[:start] + bytes(512) + self.DATA[start + 512 :]

        assert find_torn(data, 512 * 7) == 512 * 7 + start

    @pytest.mark.parametrize("count", [1, 3, 4, 100])
    def test_the_rest_of_a_sector_at_the_end_is_seen(self, count: int) -> None:
        assert find_torn(self.DATA[:1024] + bytes(count), 0) == 1024

    def test_a_length_that_a_sector_begins_with_is_no_hole(self) -> None:
        assert find_torn(bytes(2) + b"\x01\x00" + self.DATA, 510) is None
        assert find_torn(bytes(3) + b"\x40" + self.DATA, 509) is None

    @pytest.mark.parametrize(("zeros", "is_seen"), [(0, True), (8, True), (9, False)])
    def test_some_zeros_beside_a_sector_are_chance(self, zeros: int, *, is_seen: bool) -> None:
        """Before it if those behind it are more, or behind it if those before it are more."""
        before = self.DATA[: 1024 - zeros] + bytes(zeros + 512 + 100) + self.DATA[1636:]
        behind = self.DATA[:924] + bytes(100 + 512 + zeros) + self.DATA[1536 + zeros :]

        assert find_torn(before, 0) == (1024 if is_seen else None)
        assert find_torn(behind, 0) == (1024 if is_seen else None)

    @pytest.mark.parametrize("base", [0, 1, 300, 511])
    def test_more_than_one_sector_may_be_lost(self, base: int) -> None:
        first = 512 - base
        data = self.DATA[:first] + bytes(1024) + self.DATA[first + 1024 :]
        whole = self.DATA[: first + 512] + b"x" + bytes(510) + b"x" + self.DATA[first + 1024 :]

        assert find_torn(data, base) == 512
        assert find_torn(whole, base) is None
        assert find_torn(whole[: first + 1024] + bytes(512) + self.DATA[:100], base) == 1536

    def test_zeros_of_a_message_are_its_own(self) -> None:
        data = self.DATA[:900] + bytes(1500) + self.DATA[2400:]

        assert find_torn(data, 0) is None

    def test_data_without_zeros_is_whole(self) -> None:
        assert find_torn(self.DATA, 17) is None
