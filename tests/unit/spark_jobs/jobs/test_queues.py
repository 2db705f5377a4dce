"""Queues listed without Spark, of directories; tests/spark/test_fleet.py has those of nodes."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskqueue import DiskQueue
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
    assert lines[0].split()[:5] == ["node", "topic", "channel", "lag", "lag_bytes"]
    assert lines[2].split() == (
        f"node a 7 300 B {unseen} 7 {oldest} 0:50 1:200 9 450 B {oldest}".split()
    )
    assert lines[3].split() == f"node b c 2 100 B {unseen} 2 {oldest} 0:0 0:100".split()
    assert lines[-1] == "1 node, 2 queues, 9 messages, 400 B on disk"


def test_json_has_the_offsets(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queues", str(node), "--json", "--topic", "a"]) == 0

    found = json.loads(capsys.readouterr().out)
    [queue] = found["queues"]
    assert (queue["messages"], queue["disk"], queue["memory"]) == (7, 7, None)
    assert (queue["lag"], queue["lag_bytes"], queue["bytes"]) == (7, 300, 300)
    assert found["offsets"]["end"][f"path:{node}"]["a"]["at"] == "1:200"


def read_rows(node: Path, capsys: pytest.CaptureFixture[str]) -> dict[str | None, dict[str, Any]]:
    assert main(["queues", str(node), "--json", "--topic", "t"]) == 0
    return {row["channel"]: row for row in json.loads(capsys.readouterr().out)["queues"]}


def test_a_channel_lags_by_what_its_topic_still_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])
    write_queue(tmp_path, "t:c", [messages(0, 2)])
    write_queue(tmp_path, "t:idle", [[]])

    rows = read_rows(tmp_path, capsys)

    lags = {name: (row["lag"], row["lag_bytes"]) for name, row in rows.items()}
    assert lags == {None: (3, 150), "c": (5, 250), "idle": (3, 150)}
    assert {name: row["messages"] for name, row in rows.items()} == {None: 3, "c": 2, "idle": 0}


def test_finished_records_are_no_lag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two in the middle of ten are finished, of which a sidecar is the proof."""
    with closing(DiskQueue(tmp_path, "t")) as queue:
        queue.put([each.record()[4:] for each in messages(0, 10)])
        batch = queue.read(10, 1 << 20)
        assert batch is not None
        queue.commit([batch.first + 4, batch.first + 5])
        queue.sync()

        [row] = read_rows(tmp_path, capsys).values()

    assert (row["lag"], row["lag_bytes"], row["bytes"]) == (8, 8 * 50, 10 * 50)


def test_a_queue_that_only_nsqd_dat_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [{"name": "t", "paused": False, "channels": [{"name": "c", "paused": False}]}]
    (tmp_path / "nsqd.dat").write_text(json.dumps({"topics": names, "version": "1"}))

    rows = read_rows(tmp_path, capsys)
    assert {name: (row["lag"], row["lag_bytes"]) for name, row in rows.items()} == {
        None: (None, None),
        "c": (None, None),
    }

    assert main(["queues", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[3].split()[1:7] == ["t", "c", "not", "seen", "not", "seen"]
    assert "1 of 1 queues of its nsqd.dat have nothing on disk (t:c)" in printed.err
