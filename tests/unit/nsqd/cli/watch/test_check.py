"""Figures against bounds."""

import argparse

import pytest

from nsqd.cli.arguments import duration
from nsqd.cli.cluster import Outcome
from nsqd.cli.figures import Figures
from nsqd.cli.output import CliError
from nsqd.cli.watch.check import (
    Bounds,
    Status,
    Verdict,
    choose_rows,
    judge_nodes,
    judge_row,
    make_bounds,
)
from nsqd.cli.watch.rows import Key, Row


def row(name: str, depth: int = 0, clients: int = 0, growth: float = 0.0) -> Row:
    topic, _, channel = name.partition("/")
    figures = Figures.add_up(name, [{"depth": depth, "client_count": clients}], 0.0)
    return Row(Key(topic, channel), figures, 10 + growth, 10.0, float(depth), (depth,))


def options(**given: object) -> argparse.Namespace:
    none = dict.fromkeys(("max_depth", "max_age", "max_growth", "min_clients"))
    return argparse.Namespace(**{**none, **given})


def judge(each: Row, **given: object) -> tuple[Status, list[str]]:
    verdict = Verdict()
    judge_row(each, options(**given), verdict)
    return verdict.status, verdict.texts()


def test_a_figure_may_be_as_large_as_its_bound() -> None:
    bounds = Bounds(10, 20)

    assert [bounds.judge(value) for value in (10, 11, 20, 21)] == [0, 1, 1, 2]


def test_queues_are_judged() -> None:
    bounds = Bounds(10, 20)

    assert judge(row("t/c", 9), max_depth=bounds, max_age=bounds, min_clients=None)[0] == Status.OK
    assert judge(row("t", 15), max_depth=bounds) == (Status.WARNING, ["t: depth 15 > 10"])
    assert judge(row("t", 25), max_age=bounds) == (Status.CRITICAL, ["t: oldest 25 s > 20 s"])
    assert judge(row("t", growth=11), max_growth=bounds)[1] == ["t: growth 11/s > 10/s"]
    assert judge(row("t/c", clients=1), min_clients=2) == (Status.CRITICAL, ["t/c: 1 client"])
    assert judge(row("t"), min_clients=2)[0] == Status.OK  # a topic has no clients


def test_the_worst_comes_first() -> None:
    verdict = Verdict()
    verdict.add(Status.WARNING, "a")
    verdict.add(Status.CRITICAL, "b")

    assert (verdict.status, verdict.texts()) == (Status.CRITICAL, ["b", "a"])


def test_one_node_of_several_is_a_warning() -> None:
    good, bad = Outcome("a", {"health": "OK"}), Outcome("b", error="gone")
    sick = Outcome("c", {"health": "NOK - disk"})

    def status(*outcomes: Outcome) -> Status:
        verdict = Verdict()
        judge_nodes(outcomes, verdict)
        return verdict.status

    assert [status(good), status(good, bad), status(bad), status(good, sick)] == [0, 1, 2, 2]


def test_queues_are_chosen_by_name_and_pattern() -> None:
    rows = [row(name) for name in ("a", "a/x", "a/y", "b", "b/x")]

    def chosen(place: str | None) -> list[str]:
        return [each.key.name for each in choose_rows(rows, place)]

    assert len(chosen(None)) == 5
    assert chosen("a") == ["a", "a/x", "a/y"]
    assert chosen("a/x") == ["a/x"]
    assert chosen("*/x") == ["a/x", "b/x"]
    with pytest.raises(CliError):
        chosen("c")


def test_bounds_are_one_value_or_two() -> None:
    assert make_bounds(duration)("30s,5m") == Bounds(30.0, 300.0)
    assert make_bounds(duration)("1m") == Bounds(60.0, 60.0)
    for text in ("5m,30s", "1,2,3", "x"):
        with pytest.raises(argparse.ArgumentTypeError):
            make_bounds(duration)(text)
