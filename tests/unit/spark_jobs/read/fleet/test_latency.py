"""Latencies in the stats of nodes."""

from typing import Any

from spark_jobs.read.fleet.latency import Latencies, add_latencies


def stats(latency: object) -> dict[str, Any]:
    channel = {"channel_name": "c", "e2e_processing_latency": latency}
    return {"topics": [{"topic_name": "t", "channels": [channel]}]}


def test_the_longest_time_of_all_nodes_counts() -> None:
    found: Latencies = {}

    for value_ns in (2_000_000, 5_000_000, 3_000_000):
        percentiles = [{"quantile": 0.99, "value": value_ns}, {"quantile": 0.5, "value": 1000}]
        add_latencies(found, stats({"count": 1, "percentiles": percentiles}))

    assert found == {("t", "c"): {0.99: 0.005, 0.5: 1e-6}}


def test_nodes_that_do_not_measure_say_nothing() -> None:
    found: Latencies = {}

    add_latencies(found, stats({"count": 0, "percentiles": None}))
    add_latencies(found, stats(None))

    assert found == {}
