"""Counting without Spark, from the command line."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue, envelope
from spark_jobs.__main__ import main
from tests.spark.data_dirs import TIME_NS, content, messages, write_queue, write_segment


def test_messages_are_counted_per_queue_and_damage_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = tmp_path / "node"
    write_queue(node, "a", [messages(0, 3), messages(3, 4)], read=(0, 50))
    write_queue(node, "a:c", [[]])
    write_segment(node, "torn", 0, content(messages(0, 2))[:-3])

    assert main(["count", str(node)]) == 0

    printed = capsys.readouterr()
    moment = "2025-10-09 08:53:20."
    assert [" ".join(line.split()) for line in printed.out.splitlines()[2:]] == [
        f"node a NULL 6 120 B {moment}001 {moment}006 4",
        "node a c 0 0 B 0",
        f"node torn NULL 1 20 B {moment}000 {moment}000 0",
    ]
    assert "7 messages, 140 B, 1 damaged place skipped" in printed.err


def test_damage_fails_a_count_that_must_be_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path, "torn", 0, content(messages(0, 2))[:-3])

    assert main(["count", str(tmp_path), "--fail-fast"]) == 1
    assert "at offset 50: " in capsys.readouterr().err


def test_checksums_are_verified_if_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    queue.put(
        envelope.encode(TIME_NS, 0, b"%016x" % number, b"message %d" % number)
        for number in range(3)
    )
    queue.close()
    path = tmp_path / "t.diskqueue.000000.dat"
    path.write_bytes(path.read_bytes().replace(b"message 1", b"message X"))

    assert main(["count", str(tmp_path)]) == 0
    assert "3 messages, 27 B" in capsys.readouterr().err
    assert main(["count", str(tmp_path), "--verify-checksums"]) == 0
    assert "2 messages, 18 B, 1 damaged place skipped" in capsys.readouterr().err
