"""How far a stream is behind, as its lastProgress shows it."""

from pathlib import Path
from typing import Any

from spark_jobs.read.look import take_look
from spark_jobs.read.metrics import measure
from spark_jobs.read.offsets import Position
from tests.spark.data_dirs import messages, write_queue
from tests.spark.in_process import parse

RECORD = 50


def measured(path: Path, **reached: Position) -> dict[str, Any]:
    options = parse(path)
    look = take_look(options)
    return measure(look, {(f"path:{path}", name): at for name, at in reached.items()}, options)


def test_the_lag_in_messages_bytes_and_time(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 4), messages(4, 6)])
    write_queue(tmp_path, "b", [messages(0, 2)])
    (tmp_path / "c.diskqueue.meta.dat").write_text("garbage")

    assert measured(tmp_path, a=Position(0, 3 * RECORD), b=Position(0, 2 * RECORD)) == {
        "queues": 2,
        "lagBytes": 7 * RECORD,
        "lagMessages": 7,
        "oldestUnread": "2025-10-09T08:53:20Z",
        "damage": 1,
        "unreachable": 0,
    }


def test_a_query_that_has_read_all(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 4)])

    found = measured(tmp_path, a=Position(0, 4 * RECORD))

    assert (found["lagBytes"], found["lagMessages"], found["oldestUnread"]) == (0, 0, None)
