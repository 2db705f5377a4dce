"""Node: the view of the daemon that the HTTP API, statsd and the metrics have.

The daemon makes one value when it serves and passes it on instead of itself: the API can touch only
the fields that are here.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from nsqd.analytics.service import Analytics
from nsqd.broker.broker import Broker
from nsqd.broker.durations import Histogram
from nsqd.config.options import Options
from nsqd.drain import Drain
from nsqd.lookup.registration import Registration
from nsqd.runtime.descriptors import Descriptors
from nsqd.runtime.door_counts import DoorCounts
from nsqd.runtime.loop_watch import LoopWatch
from nsqd.runtime.tls import FailedHandshakes
from nsqd.stats.memory import MemoryReader
from nsqd.tcp.connection import V2Connection


@dataclass(slots=True, kw_only=True)
class Node:
    """One running nsqd. Only `PUT /config` changes it: `options` are those in force now."""

    options: Options
    broker: Broker
    connections: set[V2Connection]
    start_time_s: float  # wall clock
    # The ports in use: -1 for a unix socket, 0 for none.
    tcp_port: int
    http_port: int
    https_port: int
    # Returns when nsqd.dat holds the topic of that name as it was at the call.
    persist: Callable[[str], Awaitable[None]]
    registration: Registration
    drain: Drain
    # How late the event loop was: all lags since the start, and the worst of the last minute.
    loop_lags: Histogram
    loop_watch: LoopWatch
    # Tells this node from all others, across restarts: its data path holds it.
    node_id: str
    # The errors of each door by its name, "tcp" or "http"; of TLS handshakes; of accept.
    doors: Mapping[str, DoorCounts]
    failed_handshakes: FailedHandshakes
    descriptors: Descriptors
    # Serves the queues for analysis; None if that is turned off.
    analytics: Analytics | None
    memory: MemoryReader = field(default_factory=MemoryReader)

    @property
    def health(self) -> str:
        """ "OK", or the trouble: of the queues' disk, then of the archive."""
        broker = self.broker
        trouble = broker.archives.health if broker.archives is not None else ""
        if not trouble:
            return broker.health
        return f"NOK - {trouble}" if broker.is_healthy else f"{broker.health}; {trouble}"

    @property
    def broadcast_tcp_port(self) -> int:
        """The TCP port that others are told; 0 if there is none, as on a unix socket."""
        return self.options.broadcast_tcp_port or max(self.tcp_port, 0)

    @property
    def broadcast_http_port(self) -> int:
        """The HTTP port that others are told; 0 if there is none."""
        return self.options.broadcast_http_port or max(self.http_port, 0)
