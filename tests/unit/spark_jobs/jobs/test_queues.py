"""Queues listed without Spark, of directories; tests/spark/test_fleet.py has those of nodes."""

import json
from pathlib import Path

import pytest

from spark_jobs.__main__ import main
from tests.spark.data_dirs import messages, write_queue


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "node"
    write_queue(path, "a", [messages(0, 3), messages(3, 4)], read=(0, 50))
    write_queue(path, "b:c", [messages(0, 2)])
    write_queue(path / "archive", "a", [messages(0, 9)])
    return path


def test_a_table(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queues", str(node)]) == 0

    lines = capsys.readouterr().out.splitlines()
    unseen = "not seen not seen not seen"
    oldest = "2025-10-09T08:53:20Z"
    assert lines[2].split() == (
        f"node a 7 {unseen} 7 300 B {oldest} 0:50 1:200 9 450 B {oldest}".split()
    )
    assert lines[3].split() == f"node b c 2 {unseen} 2 100 B {oldest} 0:0 0:100".split()
    assert lines[-1] == "1 node, 2 queues, 9 messages, 400 B on disk"


def test_json_has_the_offsets(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queues", str(node), "--json", "--topic", "a"]) == 0

    found = json.loads(capsys.readouterr().out)
    [queue] = found["queues"]
    assert (queue["messages"], queue["disk"], queue["memory"]) == (7, 7, None)
    assert found["offsets"]["end"][f"path:{node}"]["a"]["at"] == "1:200"
