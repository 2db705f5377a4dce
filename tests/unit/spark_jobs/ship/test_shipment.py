"""Passes from an archive to a directory: each segment once, whatever happens in between."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from diskqueue.checksums.entries import encode, make_seed
from diskqueue.checksums.marks import mark
from spark_jobs.__main__ import main
from spark_jobs.pace import Pace
from spark_jobs.read.files.directory import OutputDirectory
from spark_jobs.ship.shipment import Passed, Shipment, ShipmentError
from tests.spark.data_dirs import Message, content, messages, write_metadata, write_segment
from tests.spark.in_process import parse, read_bodies, read_corruptions, read_stream

NODE_ID = "a" * 32


class Node:
    """An archive as nsqd leaves it: the last segment is being written."""

    def __init__(self, path: Path, *, has_checksums: bool = False) -> None:
        self.path = path
        self._has_checksums = has_checksums
        self.archive = path / "archive"
        self.archive.mkdir(parents=True)
        (path / "nsqd.node").write_text(f"{NODE_ID}\n")
        self.sent: list[bytes] = []
        self._number = 0
        self._next = 0
        self.make_anew("1" * 32)

    def make_anew(self, generation: str) -> None:
        for path in self.archive.iterdir():
            path.unlink()
        (self.archive / "t.diskqueue.generation").write_text(f"{generation}\n")
        self._number = 0
        self._write([])

    def finish_segments(self, count: int) -> None:
        for _ in range(count):
            records = messages(self._next, 5)
            self._next += 5
            self.sent += [each.body for each in records]
            self._write(records)
            self._number += 1
            self._write([])

    def _write(self, records: list[Message]) -> None:
        segment = write_segment(self.archive, "t", self._number, content(records))
        if self._has_checksums and records:
            lengths = [len(each.record()) for each in records]
            seed = make_seed("t", self._number)
            segment.with_suffix(".crc").write_bytes(encode(seed, 0, content(records), lengths))
            mark(str(segment), str(segment.with_suffix(".crc")))
        write_metadata(self.archive, "t", read=(self._first(), 0), write=(self._number, 0))

    def delete_oldest(self) -> None:
        number = self._first()
        (self.archive / f"t.diskqueue.{number:06d}.dat").unlink()
        (self.archive / f"t.diskqueue.{number:06d}.crc").unlink(missing_ok=True)
        write_metadata(self.archive, "t", read=(self._first(), 0), write=(self._number, 0))

    def _first(self) -> int:
        return min(
            int(path.name[-10:-4])
            for path in self.archive.glob("t.diskqueue.*.dat")
            if "meta" not in path.name
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def ship(node: Node, target: Path, pace: Pace | None = None) -> Passed:
    place = OutputDirectory(str(target))
    options = parse(node.path, allowMissing="true", **{"from": "archive"})
    return Shipment(options, place, pace or Pace(None)).run()


def verify(node: Node, target: Path) -> list[str]:
    options = parse(node.path, allowMissing="true", **{"from": "archive"})
    return list(Shipment(options, OutputDirectory(str(target)), Pace(None)).verify())


def arrived(target: Path) -> list[bytes]:
    damage = read_corruptions(target, **{"from": "archive"})
    # Copies that no reader was told of are there after a stop, and are not read.
    assert [row for row in damage if row["kind"] != "unsynced"] == []
    return read_bodies(target, **{"from": "archive"})


def test_each_pass_ships_what_is_new_once(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "lake" / "node"
    node.finish_segments(3)

    first = ship(node, target)
    again = ship(node, target)
    node.finish_segments(2)
    node.delete_oldest()
    node.delete_oldest()
    later = ship(node, target)

    assert (first.segment_count, first.message_count) == (3, 15)
    assert again.segment_count == 0
    assert (later.segment_count, later.warnings) == (2, [])
    assert arrived(target) == node.sent
    assert (target / "nsqd.node").read_text() == f"{NODE_ID}\n"


@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_pass_that_was_stopped_anywhere_goes_on(tmp_path: Path, *, has_checksums: bool) -> None:
    node = Node(tmp_path / "node", has_checksums=has_checksums)
    target = tmp_path / "lake"
    node.finish_segments(4)
    for stop_at in range(1, 9 if has_checksums else 5):
        chunks = []

        class Stopping(Pace):
            def wait(self, amount: int) -> None:
                chunks.append(amount)  # noqa: B023 (used within this turn of the loop)
                if len(chunks) == stop_at:  # noqa: B023
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ship(node, target, Stopping(None))
        assert arrived(target) == []

    assert ship(node, target).segment_count == 4
    assert ship(node, target).segment_count == 0
    assert arrived(target) == node.sent
    assert len(list((target / "archive").glob("*.crc"))) == (4 if has_checksums else 0)
    assert verify(node, target) == []


def test_a_stop_between_ledger_and_metadata(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    node.finish_segments(1)
    ship(node, target)
    before = (target / "archive/t.diskqueue.meta.dat").read_bytes()
    node.finish_segments(1)
    ship(node, target)
    (target / "archive/t.diskqueue.meta.dat").write_bytes(before)

    ship(node, target)

    assert arrived(target) == node.sent


def test_a_topic_made_anew_follows_what_it_was(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    node.finish_segments(3)
    ship(node, target)
    node.make_anew("2" * 32)
    node.finish_segments(2)

    anew = ship(node, target)
    assert anew.segment_count == 2
    assert "topic t was deleted and made anew" in str(anew.warnings)
    again = ship(node, target)
    assert (again.segment_count, again.warnings) == (0, [])
    assert arrived(target) == node.sent


def test_a_stream_of_the_archive_goes_on_where_it_was_shipped(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    node.finish_segments(2)
    read, checkpoint = read_stream(node.path, **{"from": "archive"})
    node.finish_segments(2)
    ship(node, target)

    more, checkpoint = read_stream(target, checkpoint, **{"from": "archive"})
    node.make_anew("2" * 32)
    node.finish_segments(1)
    ship(node, target)
    last, _ = read_stream(target, checkpoint, **{"from": "archive"})

    assert (len(read), len(more), len(last)) == (10, 10, 5)
    assert read + more + last == node.sent


def test_segments_that_nsqd_deleted_first_are_told_here_and_to_readers(
    node: Node, tmp_path: Path
) -> None:
    target = tmp_path / "lake"
    node.finish_segments(1)
    ship(node, target)
    node.finish_segments(3)
    node.delete_oldest()
    node.delete_oldest()

    passed = ship(node, target)

    assert "1 segments of topic t were deleted by nsqd before they were shipped" in str(
        passed.warnings
    )
    [gap] = read_corruptions(target, **{"from": "archive"})
    assert (gap["kind"], gap["segment"]) == ("missing", 1)
    assert read_bodies(target, **{"from": "archive"}) == node.sent[:5] + node.sent[10:]


def test_old_segments_may_be_removed_from_the_target(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    node.finish_segments(3)
    ship(node, target)
    (target / "archive/t.diskqueue.000000.dat").unlink()

    ship(node, target)

    assert arrived(target) == node.sent[5:]


def test_what_is_refused(node: Node, tmp_path: Path) -> None:
    node.finish_segments(1)
    ship(node, tmp_path / "lake")
    other = Node(tmp_path / "other")
    (other.path / "nsqd.node").write_text("b" * 32)
    with pytest.raises(ShipmentError, match="history of another node"):
        ship(other, tmp_path / "lake")

    descriptor = os.open(node.archive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ShipmentError, match="another ship is at work"):
        ship(node, tmp_path / "lake")
    os.close(descriptor)

    shutil.rmtree(node.archive)
    with pytest.raises(ShipmentError, match="has no archive: start nsqd with --retain-bytes"):
        ship(node, tmp_path / "lake")


def test_the_command(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node.finish_segments(3)
    command = ["ship", str(node.path), "--to", f"{tmp_path}/lake"]

    assert main([*command, "--rate", "100m"]) == 0
    assert main([*command, "--verify"]) == 0
    path = tmp_path / "lake/archive/t.diskqueue.000001.dat"
    path.write_bytes(path.read_bytes().replace(b"message", b"massage"))
    assert main([*command, "--verify"]) == 1
    assert main([*command, "--rate", "fast"]) == 1
    assert main(["ship", str(tmp_path / "none"), "--to", f"{tmp_path}/lake"]) == 1

    printed = capsys.readouterr()
    assert "3 segments shipped, 15 messages" in printed.err
    assert "t.diskqueue.000001.dat is not what was copied" in printed.out
    assert "--rate is a size such as 64m" in printed.err
    assert "no such data directory" in printed.err


VERIFIED = {"from": "archive", "verifyChecksums": "true"}


def change_a_body(target: Path, number: int) -> bytes:
    """Change the body of the second of five messages; return it as it was."""
    path = target / f"archive/t.diskqueue.{number:06d}.dat"
    data = path.read_bytes()
    position = 2 * len(data) // 5 - 1
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 1]))
    return data[position - 19 : position + 1]


def test_shipped_history_can_be_verified(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", has_checksums=True)
    target = tmp_path / "lake"
    node.finish_segments(3)
    ship(node, target)
    assert read_bodies(target, **VERIFIED) == node.sent

    changed = change_a_body(target, 1)

    assert changed == node.sent[6]
    assert read_bodies(target, **VERIFIED) == [each for each in node.sent if each != changed]
    [row] = read_corruptions(target, **VERIFIED)
    assert (row["kind"], row["segment"], row["offset"]) == ("denied", 1, 50)


def test_checksums_follow_a_topic_made_anew(tmp_path: Path) -> None:
    """Its segments get other numbers, which their checksums must prove."""
    node = Node(tmp_path / "node", has_checksums=True)
    target = tmp_path / "lake"
    node.finish_segments(3)
    ship(node, target)
    node.make_anew("2" * 32)
    node.finish_segments(2)
    ship(node, target)

    changed = change_a_body(target, 4)

    assert changed == node.sent[21]
    assert read_bodies(target, **VERIFIED) == [each for each in node.sent if each != changed]
    assert len(verify(node, target)) == 1


def test_a_segment_that_is_destroyed_wholly_is_known_by_its_mark(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", has_checksums=True)
    target = tmp_path / "lake"
    node.finish_segments(2)
    ship(node, target)
    # Other messages, of the right shape, where none of the old ones is left.
    path = target / "archive/t.diskqueue.000000.dat"
    with path.open("r+b") as file:
        file.write(content(messages(100, 5)))

    assert read_bodies(target, **VERIFIED) == node.sent[5:]


def test_a_segment_without_checksums_is_shipped_alone(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", has_checksums=True)
    target = tmp_path / "lake"
    node.finish_segments(2)
    (node.archive / "t.diskqueue.000000.crc").unlink()

    ship(node, target)

    assert read_bodies(target, **VERIFIED) == node.sent
    assert [path.name for path in (target / "archive").glob("*.crc")] == ["t.diskqueue.000001.crc"]


def test_checksum_files_that_were_changed_or_lost_are_told(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", has_checksums=True)
    target = tmp_path / "lake"
    node.finish_segments(2)
    ship(node, target)
    (target / "archive/t.diskqueue.000000.crc").unlink()
    path = target / "archive/t.diskqueue.000001.crc"
    path.write_bytes(path.read_bytes()[::-1])

    assert verify(node, target) == [
        "t.diskqueue.000000.crc is missing",
        "t.diskqueue.000001.crc is not what was copied",
    ]
    assert "1 files that had arrived are missing or changed" in str(ship(node, target).warnings)


def test_a_segment_that_nsqd_deletes_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", has_checksums=True)
    target = tmp_path / "lake"
    node.finish_segments(2)

    class Deleting(Pace):
        def wait(self, amount: int) -> None:
            # In the order in which nsqd does.
            (node.archive / "t.diskqueue.000001.dat").unlink(missing_ok=True)

    assert ship(node, target, Deleting(None)).segment_count == 1
    assert sorted(path.name for path in (target / "archive").glob("t.diskqueue.0*")) == [
        "t.diskqueue.000000.crc",
        "t.diskqueue.000000.dat",
    ]
    assert arrived(target) == node.sent[:5]
