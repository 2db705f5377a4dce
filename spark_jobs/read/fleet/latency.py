"""How long messages take from publish to finish, where nodes measure it.

nsqd measures it with --e2e-processing-latency-percentile, and tells it in /stats.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spark_jobs.read.fleet.client import NodeClient, NodeError
from spark_jobs.read.fleet.options import FleetOptions

_THREADS = 16
_TARGET = "/stats?format=json&include_clients=false"

# Of a channel: percentiles (0.99) and their seconds, the longest of all nodes.
Latencies = dict[tuple[str, str], dict[float, float]]


def find_latencies(urls: Iterable[str], options: FleetOptions) -> tuple[Latencies, list[str]]:
    """Ask nodes; return their latencies, and a sentence about each that did not answer."""
    found: Latencies = {}
    failures = []

    def ask(url: str) -> Any:
        client = NodeClient(url, options)
        try:
            return client.fetch_json("GET", _TARGET)[0]
        except NodeError as error:
            return error
        finally:
            client.close()

    with ThreadPoolExecutor(_THREADS) as pool:
        for answer in pool.map(ask, urls):
            if isinstance(answer, NodeError):
                failures.append(f"latencies are not known: {answer}")
            else:
                add_latencies(found, answer)
    return found, failures


def add_latencies(found: Latencies, stats: Mapping[str, Any]) -> None:
    """Add the latencies in one node's /stats; of several nodes the longest time counts."""
    for topic in stats["topics"]:
        for channel in topic["channels"]:
            key = topic["topic_name"], channel["channel_name"]
            latency = channel.get("e2e_processing_latency") or {}
            for each in latency.get("percentiles") or ():
                times = found.setdefault(key, {})
                quantile, seconds = float(each["quantile"]), each["value"] / 1e9
                times[quantile] = max(times.get(quantile, 0.0), seconds)
