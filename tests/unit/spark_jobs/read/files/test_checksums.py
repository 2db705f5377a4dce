"""verifyChecksums: messages that checksums deny are damage, wrong lengths are repaired."""

import os
from pathlib import Path

import pytest

from diskqueue import DiskQueue, envelope
from spark_jobs.read.files.checksums import Findings
from spark_jobs.read.files.scan import DamagedSegmentError, parse_damage
from tests.spark.data_dirs import TIME_NS
from tests.spark.in_process import read_bodies, read_corruptions, read_table

BODIES = [b"message %02d" % number for number in range(10)]
RECORD_BYTES = 4 + 26 + 10


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A queue with a changed byte in the body of the fourth message."""
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    queue.put(
        envelope.encode(TIME_NS + number, 0, b"%016x" % number, body)
        for number, body in enumerate(BODIES)
    )
    queue.close()
    path = tmp_path / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    data[4 * RECORD_BYTES - 1] ^= 1
    path.write_bytes(data)
    return tmp_path


def test_denied_message_is_left_out_if_that_is_asked_for(damaged: Path) -> None:
    assert len(read_bodies(damaged)) == 10
    assert read_bodies(damaged, verifyChecksums="true") == BODIES[:3] + BODIES[4:]


def test_denied_message_is_damage(damaged: Path) -> None:
    with pytest.raises(DamagedSegmentError, match="at offset 120: the checksum is wrong"):
        read_bodies(damaged, verifyChecksums="true", mode="FAILFAST")
    assert "denied" in str(read_corruptions(damaged, verifyChecksums="true"))
    assert not read_corruptions(damaged)


def test_damage_among_the_rows_says_the_same_as_the_table(damaged: Path) -> None:
    names = ("segment", "offset", "damage")
    [row] = [
        row
        for row in read_table(damaged, names, verifyChecksums="true").to_pylist()
        if row["damage"] is not None
    ]
    [place] = read_corruptions(damaged, verifyChecksums="true")

    found = parse_damage(row["damage"])

    assert found == tuple(place[name] for name in ("kind", "path", "reason", "bytes"))
    assert (row["segment"], row["offset"]) == (place["segment"], place["offset"])
    assert parse_damage("missing: /d/t.diskqueue.000001.dat: the segment is missing") is None


def test_denied_message_is_not_salvaged(damaged: Path) -> None:
    for name in ("dat", "crc"):
        path = damaged / f"t.diskqueue.000000.{name}"
        path.rename(f"{path}.bad")
    (damaged / "t.diskqueue.meta.dat").unlink()
    options = {"includeBad": "true"}

    assert len(read_bodies(damaged, **options)) == 10
    found = read_bodies(damaged, verifyChecksums="true", **options)
    assert found == BODIES[:3] + BODIES[4:]


def grow_length(directory: Path, number: int, record_count: int) -> None:
    """Make a record as long as several: its body swallows those behind it."""
    path = directory / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    start = number * RECORD_BYTES
    data[start : start + 4] = (record_count * RECORD_BYTES - 4).to_bytes(4)
    path.write_bytes(data)


def test_length_that_swallows_other_messages_is_repaired(damaged: Path) -> None:
    grow_length(damaged, 6, 3)

    assert len(read_bodies(damaged)) == 8
    assert read_bodies(damaged, verifyChecksums="true") == BODIES[:3] + BODIES[4:]


def test_salvage_repairs_lengths_too(damaged: Path) -> None:
    grow_length(damaged, 6, 3)
    for name in ("dat", "crc"):
        path = damaged / f"t.diskqueue.000000.{name}"
        path.rename(f"{path}.bad")
    (damaged / "t.diskqueue.meta.dat").unlink()

    found = read_bodies(damaged, verifyChecksums="true", includeBad="true")

    assert found == BODIES[:3] + BODIES[4:]


@pytest.mark.parametrize("position", range(95, 106))
@pytest.mark.parametrize("size", [1, 3, 4, 8])
def test_repair_of_a_window_that_cuts_a_length(position: int, size: int) -> None:
    findings = Findings(lengths=[(40, b"...."), (100, b"ABCD"), (200, b"....")])
    expected = bytearray(300)
    expected[100:104] = b"ABCD"
    window = bytearray(size)

    findings.repair(memoryview(window), position)

    assert window == expected[position : position + size]


def test_mark_tells_of_a_segment_that_is_destroyed_wholly(tmp_path: Path) -> None:
    """None of the checksums is right; only the mark proves that they are those of the segment."""
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    queue.put([envelope.encode(TIME_NS, 0, b"%016x" % 1, b"one")])
    queue.close()
    path = tmp_path / "t.diskqueue.000000.dat"
    try:
        os.getxattr(path, "user.nsqd.segment")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    other = envelope.encode(TIME_NS + 10**9, 7, b"%016x" % 2, b"two")
    with path.open("r+b") as file:
        file.write(len(other).to_bytes(4) + other)

    assert read_bodies(tmp_path) == [b"two"]
    assert read_bodies(tmp_path, verifyChecksums="true") == []
