"""docs/grafana-dashboard.json: every query is about metrics and labels that /metrics has."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"

METRIC = re.compile(r"\b((?:nsqd|process|python)_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)\s*=~?\s*"')
GROUPING = re.compile(r"\bby \(([a-z_, ]+)\)")
VALUES_OF = re.compile(r"label_values\((.+), ([a-z_]+)\)$")
# Prometheus puts this on every sample of a target.
FROM_PROMETHEUS = {"instance"}


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def expressions() -> Iterator[str]:
    for panel in read_dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


async def scrape(nsqd: RunningDaemon) -> dict[str, set[str]]:
    """Return the labels of every metric that a busy node has."""
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    consumer.fin(await consumer.read_message())
    await nsqd.wait_for_channel("t", in_flight_count=0)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        text = (await http.get("/metrics")).text
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels[sample.name] |= set(sample.labels) | FROM_PROMETHEUS
    return labels


async def test_every_query_is_about_something_that_is_there(start_nsqd: StartNsqd) -> None:
    known = await scrape(await start_nsqd(lookupd_tcp_addresses=("127.0.0.1:1",)))

    asked = 0
    for expression in expressions():
        used: set[str] = set()
        for name, matchers in METRIC.findall(expression):
            assert name in known, f"{name} in {expression}"
            assert set(MATCHER.findall(matchers)) <= known[name], expression
            used |= known[name]
            asked += 1
        for grouping in GROUPING.findall(expression):
            assert {label.strip() for label in grouping.split(",")} <= used, expression
    assert asked > 20


async def test_every_variable_is_a_label_that_is_there(nsqd: RunningDaemon) -> None:
    known = await scrape(nsqd)
    variables = read_dashboard()["templating"]["list"]

    for variable in variables:
        if variable["type"] == "query":
            match = VALUES_OF.match(variable["query"]["query"])
            assert match is not None
            [(name, matchers)] = METRIC.findall(match[1])
            assert {match[2], *MATCHER.findall(matchers)} <= known[name]
    used = set(re.findall(r"\$([a-z]+)", " ".join(expressions())))
    assert used <= {variable["name"] for variable in variables}


def test_topics_without_channels_are_shown() -> None:
    """To Prometheus nothing plus something is nothing, so a sum has to be over both at once."""
    for expression in expressions():
        names = {name for name, _ in METRIC.findall(expression)}
        if any("_channel_" in name for name in names) and any("_topic_" in name for name in names):
            assert " or " in expression
            assert "+" not in expression


def test_the_main_figures_are_shown() -> None:
    shown = {name for expression in expressions() for name, _ in METRIC.findall(expression)}

    assert shown >= {
        "nsqd_healthy",
        "nsqd_topic_depth",
        "nsqd_topic_messages_total",
        "nsqd_channel_depth",
        "nsqd_channel_in_flight",
        "nsqd_channel_deferred",
        "nsqd_channel_finished_total",
        "nsqd_channel_requeued_total",
        "nsqd_channel_timed_out_total",
        "nsqd_channel_clients",
        "nsqd_channel_finish_time_seconds_bucket",
        "nsqd_fsync_duration_seconds_bucket",
        "nsqd_lookupd_connected",
    }


def test_panels_neither_overlap_nor_share_an_id() -> None:
    panels = read_dashboard()["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))

    assert len({panel["id"] for panel in panels}) == len(panels)
