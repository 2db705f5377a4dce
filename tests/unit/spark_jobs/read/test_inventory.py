"""What is selected, what is known and empty, and what cannot be seen."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from spark_jobs.read.inventory import (
    Inventory,
    NoSuchQueueError,
    refuse_nothing,
    take_inventory,
)
from tests.spark.data_dirs import messages, write_queue
from tests.spark.in_process import parse


def write_nsqd_dat(directory: Path, topics: dict[str, list[str]]) -> None:
    document = {
        "topics": [
            {
                "name": topic,
                "paused": False,
                "channels": [{"name": name, "paused": False} for name in channels] or None,
            }
            for topic, channels in topics.items()
        ],
        "version": "1.3.0",
    }
    (directory / "nsqd.dat").write_text(json.dumps(document))


def look(path: Path, **options: str) -> Inventory:
    return take_inventory(parse(path, **options))


def test_topics_of_nsqd_dat_exist_though_they_have_no_files(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 2)])
    write_nsqd_dat(tmp_path, {"a": [], "b": ["c", "d"]})

    found = look(tmp_path)

    assert found.topics == ["a", "b"]
    assert [queue.name for queue in found.queues] == ["a"]
    assert look(tmp_path, topic="b").names == {("b", None), ("b", "c"), ("b", "d")}
    [text] = found.unseen
    assert "2 of 3 queues of its nsqd.dat have nothing on disk (b:c, b:d)" in text
    assert look(tmp_path, topic="a").unseen == ()


def test_a_running_nsqd_has_messages_that_are_not_seen(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 2)])
    write_nsqd_dat(tmp_path, {"a": []})
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        [text] = look(tmp_path).unseen
    finally:
        os.close(lock)

    assert text.startswith(f"an nsqd is running in {tmp_path}: its messages in memory")
    assert look(tmp_path).unseen == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"topics": 3}', '{"topics": [{}]}'])
def test_an_nsqd_dat_that_is_none_knows_nothing(text: str, tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 2)])
    (tmp_path / "nsqd.dat").write_text(text)

    assert look(tmp_path).topics == ["a"]


@pytest.mark.parametrize("given", [{"topic": "a,x"}, {"topic": "x"}, {"channel": "x"}])
def test_a_name_that_nothing_has_is_an_error_unless_allowed(
    given: dict[str, str], tmp_path: Path
) -> None:
    write_queue(tmp_path, "a", [messages(0, 2)])

    with pytest.raises(NoSuchQueueError, match=r"matches (topic|channel)=x; there are: a$"):
        look(tmp_path, **given)
    assert look(tmp_path, allowMissing="true", **given) is not None


def test_a_pattern_may_describe_nothing(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 2)])

    found = look(tmp_path, topic="x*")

    assert found.queues == []
    with pytest.raises(NoSuchQueueError, match=r"matches topic=x\*; there are: a$"):
        refuse_nothing(parse(tmp_path, topic="x*"), found)


def test_topics_without_history_are_empty_in_an_archive(tmp_path: Path) -> None:
    write_queue(tmp_path, "a", [messages(0, 2)])
    write_nsqd_dat(tmp_path, {"a": ["c"]})

    found = look(tmp_path, topic="a", **{"from": "archive"})

    assert found.names == {("a", None)}
    assert not found.queues
    assert not found.unseen
