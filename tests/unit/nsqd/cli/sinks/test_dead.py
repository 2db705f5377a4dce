"""Where dead letters are; what becomes of them is in tests/cli."""

import pytest

from nsqd.cli.cluster import Outcome
from nsqd.cli.main import main
from nsqd.cli.output import CliError
from nsqd.cli.sinks.dead import Place


def make(*channels: str) -> Place:
    entries = [
        {"channel_name": name, "depth": 1, "in_flight_count": 2, "deferred_count": 4}
        for name in channels
    ]
    topic = {"topic_name": "t.dead", "depth": 8, "channels": entries}
    other = {"topic_name": "t", "depth": 100, "channels": []}
    return Place("t", "t.dead", [], [Outcome("a", {"topics": [topic, other]})])


def test_letters_wait_in_the_topic_or_in_its_only_channel() -> None:
    assert (make().choose_channel(None), make().count("nsq_dead")) == ("nsq_dead", 8)
    assert (make("a").choose_channel(None), make("a").count("a")) == ("a", 15)
    assert make("a", "nsq_dead").choose_channel(None) == "nsq_dead"
    assert make("a", "b").choose_channel("b") == "b"
    with pytest.raises(CliError, match="a, b"):
        make("a", "b").choose_channel(None)


@pytest.mark.parametrize(
    "argv", [(), ("nothing",), ("replay",), ("peek",), ("replay", "t", "--limit", "0")]
)
def test_wrong_usage(argv: tuple[str, ...]) -> None:
    assert main(["dead", "--no-context", *argv]) == 2
