"""A segment against its checksums, for tools."""

from functools import partial
from pathlib import Path

import pytest

from diskqueue import DiskQueue, layout
from diskqueue.checksums import audit as audit_module
from diskqueue.checksums.audit import Audit, Denied, audit, iter_denied, read_checksums
from diskqueue.checksums.entries import make_seed
from tests.unit.diskqueue.queue_files import NAME, framed, payload, segment_path

pytestmark = pytest.mark.usefixtures("closes_files")

SIZE = 44


def make_segment(directory: Path, count: int = 10) -> Path:
    queue = DiskQueue(directory, NAME, has_checksums=True)
    queue.put([payload(number, 40) for number in range(count)])
    queue.close()
    return segment_path(directory, 0)


def change(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_whole_segment_is_covered(tmp_path: Path) -> None:
    found = audit(str(make_segment(tmp_path)))

    assert found.has_file
    assert (found.denied, found.uncovered_bytes, found.garbage_bytes) == ([], 0, 0)


def test_damage_is_located(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    change(path, 2 * SIZE + 40)
    change(path, 5 * SIZE + 3)

    found = audit(str(path))

    assert found.denied == [Denied(2 * SIZE, 3 * SIZE, 1)]
    assert found.repaired_count == 1


def test_damage_of_the_checksum_file_is_told(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    checksums = path.with_suffix(".crc")
    queue = DiskQueue(tmp_path, NAME, has_checksums=True)
    queue.put([payload(77, 40)])
    queue.close()
    with checksums.open("ab") as file:
        file.write(b"DQC1")
    change(checksums, 40)

    found = audit(str(path))

    assert found.garbage_bytes == checksums.stat().st_size - 32 - 4
    assert found.tail_bytes == 4
    assert found.uncovered_bytes == 10 * SIZE


def test_quarantined_segment_is_audited_by_its_own_checksums(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    change(path, 2 * SIZE + 40)
    bad = path.rename(f"{path}.bad")
    checksums = path.with_suffix(".crc")
    checksums.rename(f"{checksums}.bad")

    assert audit(str(bad)).denied == [Denied(2 * SIZE, 3 * SIZE, 1)]


def test_bytes_beyond_the_end_are_missed(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    path.write_bytes(path.read_bytes()[: 8 * SIZE])

    assert audit(str(path)).missing_bytes == 2 * SIZE


def test_segment_without_a_checksum_file_is_uncovered(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    (tmp_path / f"{NAME}.diskqueue.000000.crc").unlink()

    found = audit(str(path))

    assert not found.has_file
    assert found.uncovered_bytes == 10 * SIZE


def test_part_of_a_segment_is_compared_wherever_it_is_read(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    change(path, 2 * SIZE + 40)
    data = path.read_bytes()
    checksums = read_checksums(str(tmp_path / f"{NAME}.diskqueue.000000.crc"))
    assert checksums is not None

    def read_at(size: int, offset: int) -> bytes:
        return data[offset : offset + size]

    find = partial(iter_denied, read_at, checksums, make_seed(NAME, 0))
    assert [part.start for part in find(SIZE, 10 * SIZE)] == [2 * SIZE]
    assert not list(find(3 * SIZE, 10 * SIZE))


def test_bytes_behind_the_last_entry_are_uncovered(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    queue = DiskQueue(tmp_path, NAME, has_checksums=False)
    queue.put([payload(number, 40) for number in (10, 11)])
    queue.close()

    found = audit(str(path))

    assert found.uncovered == [(10 * SIZE, 12 * SIZE)]
    assert found.uncovered_bytes == 2 * SIZE


@pytest.mark.parametrize("read_bytes", [1, SIZE - 1, SIZE, 100, 3 * SIZE, 1000])
def test_the_size_of_a_read_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    path = make_segment(tmp_path)
    with path.open("ab") as file:  # as go-diskqueue would
        file.write(b"".join(framed(payload(number, 40)) for number in range(10, 20)))
    queue = DiskQueue(tmp_path, NAME, has_checksums=True)
    queue.put([payload(number, 40) for number in range(20, 25)])
    queue.close()
    change(path, 2 * SIZE + 40)
    change(path, 5 * SIZE + 3)
    expected = audit(str(path))
    assert expected == Audit(
        denied=[Denied(2 * SIZE, 3 * SIZE, 1)],
        repaired_count=1,
        uncovered=[(10 * SIZE, 20 * SIZE)],
        has_file=True,
    )
    assert expected.uncovered_bytes == 10 * SIZE

    monkeypatch.setattr(audit_module, "_READ_BYTES", read_bytes)

    assert audit(str(path)) == expected
    assert audit(str(path), 3 * SIZE, 12 * SIZE) == Audit(
        repaired_count=1, uncovered=[(10 * SIZE, 12 * SIZE)], has_file=True
    )


def test_entries_of_the_same_places_are_counted(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    checksums = path.with_suffix(".crc")
    checksums.write_bytes(checksums.read_bytes() * 3)

    assert audit(str(path)).repeated_count == 2


def test_checksums_of_another_segment_are_foreign(tmp_path: Path) -> None:
    path = make_segment(tmp_path)
    path.unlink()
    path.write_bytes(b"".join(framed(payload(number, 60)) for number in range(50, 60)))

    found = audit(str(path))

    assert found.is_foreign
    assert found.uncovered == [(0, 640)]
    path.write_bytes(b"")
    assert not audit(str(path)).is_foreign


def test_checksums_that_cannot_be_read_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_segment(tmp_path)

    def fail(_path: str) -> int:
        raise PermissionError

    monkeypatch.setattr(layout, "find_size", fail)

    assert read_checksums(str(path.with_suffix(".crc"))) is None
