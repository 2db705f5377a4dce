"""Lines of `nsq stat`, for pipes and for terminals."""

import pytest

from nsqd.cli.figures import Figures
from nsqd.cli.watch.rows import Key, Row
from nsqd.cli.watch.stat import choose_rows, make_lines


def row(channel: str, depth: int = 1_000_000, node: str = "") -> Row:
    entry = {"depth": depth, "message_count": 10**9, "client_count": 3, "paused": channel == "p"}
    figures = Figures.add_up("", [entry], 0.0)
    return Row(Key("t", channel, node), figures, 1234567.0, 1.0, 99.0, (0, depth))


@pytest.mark.parametrize("width", [80, 112, 124, 200])
def test_lines_fit_a_terminal_and_are_aligned(width: int) -> None:
    rows = [row("c" * 60), row("short"), row("")]

    lines = make_lines(rows, width, has_head=True)

    assert max(map(len, lines)) <= width
    assert len({line.rindex("|") for line in lines}) == 1
    assert lines[0].split()[0] == "channel"
    assert lines[3].startswith("(topic)")


def test_a_pipe_gets_every_column_and_whole_names() -> None:
    [head, line] = make_lines([row("p" * 100)], None, has_head=True)

    assert "latency" in head
    assert line.startswith("p" * 100)
    assert "1,000,000↑" in line
    assert make_lines([row("p")], None, has_head=False)[0].endswith("  paused")


def test_rows_of_a_topic_or_of_a_channel() -> None:
    rows = [row("b", node="n2"), row("b", node="n1"), row(""), row("a")]

    chosen = [(each.key.channel, each.key.node) for each in choose_rows(rows, "t", None)]
    assert chosen == [("", ""), ("a", ""), ("b", "n1"), ("b", "n2")]
    assert len(choose_rows(rows, "t", "b")) == 2
    assert choose_rows(rows, "other", None) == []
