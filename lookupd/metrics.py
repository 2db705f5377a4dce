"""Metrics for Prometheus: the size of the database, the work of the TCP and HTTP servers.

The registry and the servers keep these figures for themselves; a scrape reads them. Names begin
with nsqlookupd_.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lookupd.registry import Registry
from lookupd.tcp import PeerServer
from nsqd.runtime.loop_watch import LAG_BOUNDS_S


class Metrics:
    """Render the text of /metrics."""

    def __init__(
        self,
        registry: Registry,
        peer_server: PeerServer,
        http_request_counts: Counter[tuple[str, int]],
        *,
        clock: Callable[[], float],
    ) -> None:
        """Args:
        http_request_counts: answered requests by path and status.
        """
        # A collection of its own, as the library's default one belongs to the whole process.
        self._collectors = CollectorRegistry()
        self._collectors.register(_DatabaseCollector(registry, clock))
        self._collectors.register(_DoorCollector(peer_server, http_request_counts))
        lags = Histogram(
            *("nsqlookupd_loop_lag_seconds", "how late the event loop was, every 25 ms"),
            registry=self._collectors,
            buckets=LAG_BOUNDS_S,
        )
        # Called with each lag of the event loop, in seconds.
        self.observe_lag = lags.observe
        ProcessCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def render(self) -> bytes:
        """Read all figures now."""
        return generate_latest(self._collectors)


class _DatabaseCollector(Collector):
    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        counts = self._registry.count(now=self._clock())
        yield _gauge("peers", "nsqds connected and identified", counts.peers)
        yield _gauge("active_peers", "of these, not silent for too long", counts.active_peers)
        yield _gauge("topics", "known topics", counts.topics)
        yield _gauge("channels", "known channels", counts.channels)
        producers = GaugeMetricFamily(
            "nsqlookupd_producers", "registrations by category", labels=["category"]
        )
        producers.add_metric(["topic"], counts.topic_producers)
        producers.add_metric(["channel"], counts.channel_producers)
        yield producers
        yield _gauge("tombstones", "producers hidden from a topic", counts.tombstones)


class _DoorCollector(Collector):
    def __init__(self, server: PeerServer, http_request_counts: Counter[tuple[str, int]]) -> None:
        self._server = server
        self._http_request_counts = http_request_counts

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield _gauge("tcp_connections", "open TCP connections", len(server.connections))
        accepted = CounterMetricFamily("nsqlookupd_tcp_accepted", "TCP connections accepted")
        accepted.add_metric([], server.accepted_count)
        yield accepted
        yield _counters("tcp_commands", "commands carried out", "command", server.command_counts)
        yield _counters("tcp_errors", "peers refused, by code", "code", server.error_counts)
        requests = CounterMetricFamily(
            "nsqlookupd_http_requests", "HTTP requests answered", labels=["path", "status"]
        )
        for (path, status), count in self._http_request_counts.items():
            requests.add_metric([path, str(status)], count)
        yield requests


def _gauge(name: str, help_text: str, value: int) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"nsqlookupd_{name}", help_text, value=value)


def _counters(name: str, help_text: str, label: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"nsqlookupd_{name}", help_text, labels=[label])
    for key, count in counts.items():
        family.add_metric([key], count)
    return family
