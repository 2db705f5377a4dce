"""verifyChecksums over HTTP: what the checksums of a running node's segments deny is left out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diskqueue.checksums.audit import audit
from spark_jobs import snapshot
from spark_jobs.__main__ import main
from spark_jobs.read.files.scan import DamagedSegmentError
from tests.spark.in_process import read_corruptions, read_table
from tests.spark.test_fleet_stream import Query
from tests.support.daemon_process import DaemonProcess

RECORD_BYTES = 4 + 26 + 6
COUNT = 6000
# One that the daemon does not read ahead.
SEGMENT = 30


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    """An nsqd with many small segments on disk."""
    flags = (
        "--mem-queue-size=0",
        "--retain-bytes=1000000",
        "--sync-every=1",
        "--max-bytes-per-file=5000",
    )
    with DaemonProcess(tmp_path / "nsqd", *flags, data=tmp_path) as daemon:
        for start in range(0, COUNT, 50):
            numbers = range(start, start + 50)
            body = "\n".join(f"m{number:05d}" for number in numbers).encode()
            daemon.request("POST", "/mpub?topic=t", body)
        yield daemon


def damage(directory: Path) -> list[bytes]:
    """Change a byte of a fourth body, and let a tenth record swallow the two behind it.

    Returns the bodies of all messages but that one.
    """
    with (directory / f"t.diskqueue.{SEGMENT:06d}.dat").open("r+b") as file:
        file.seek(4 * RECORD_BYTES - 6)
        body = file.read(6)
        file.seek(4 * RECORD_BYTES - 1)
        file.write(b"X")
        file.seek(9 * RECORD_BYTES)
        file.write((3 * RECORD_BYTES - 4).to_bytes(4))
    return [each for number in range(COUNT) if (each := b"m%05d" % number) != body]


@pytest.mark.parametrize("origin", ["backlog", "archive"])
def test_no_wrong_body_is_read(node: DaemonProcess, tmp_path: Path, origin: str) -> None:
    good = damage(tmp_path if origin == "backlog" else tmp_path / "archive")
    given = {"nsqd": node.http_address, "from": origin, "topic": "t"}
    with snapshot(**given) as options:
        verified = options | {"verifyChecksums": "true"}
        plain = read_table(None, ("body",), **options)["body"].to_pylist()
        found = sorted(read_table(None, ("body",), **verified)["body"].to_pylist())
        rows = read_corruptions(None, **verified)
        with pytest.raises(DamagedSegmentError, match="at offset 108: the checksum is wrong"):
            read_table(None, ("body",), mode="FAILFAST", **verified)

    assert len(plain) == COUNT - 2
    assert found == good
    assert [
        (row["kind"], row["topic"], row["segment"], row["offset"], row["bytes"]) for row in rows
    ] == [("denied", "t", SEGMENT, 3 * RECORD_BYTES, RECORD_BYTES)]


def test_history_is_shipped_with_its_checksums(node: DaemonProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert main(["ship", str(tmp_path), "--to", str(lake)]) == 0
    segments = sorted((lake / "archive").glob("t.diskqueue.0*.dat"))
    assert len(segments) > SEGMENT
    for path in segments:
        found = audit(str(path))
        assert found.has_file, path
        assert (found.uncovered, found.denied, found.garbage_bytes) == ([], [], 0)

    good = damage(lake / "archive")

    verified = {"from": "archive", "topic": "t", "verifyChecksums": "true"}
    bodies = read_table(lake, ("body",), **verified)["body"].to_pylist()
    # The last segments are still at the node.
    assert bodies == good[: len(bodies)]
    assert [row["kind"] for row in read_corruptions(lake, **verified)] == ["denied"]


def test_checksums_are_there_though_the_topic_is_gone(node: DaemonProcess, tmp_path: Path) -> None:
    good = damage(tmp_path)
    with snapshot(nsqd=node.http_address, verifyChecksums="true", topic="t") as options:
        node.request("POST", "/topic/delete?topic=t")

        assert not list(tmp_path.glob("t.*"))
        assert sorted(read_table(None, ("body",), **options)["body"].to_pylist()) == good


def test_messages_in_memory_need_no_checksums(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as node:
        node.request("POST", "/mpub?topic=t", b"1\n2")
        with snapshot(nsqd=node.http_address, verifyChecksums="true") as options:
            assert read_table(None, ("body",), **options)["body"].to_pylist() == [b"1", b"2"]


def test_streams_verify_too(node: DaemonProcess, tmp_path: Path) -> None:
    good = damage(tmp_path)
    options = {"nsqd": node.http_address, "topic": "t", "verifyChecksums": "true"}

    with pytest.raises(DamagedSegmentError, match="the checksum is wrong"):
        Query(**options).take(COUNT)  # batch by batch: nsqd tells of synced messages only
    assert Query(mode="PERMISSIVE", **options).take(COUNT - 1) == good
