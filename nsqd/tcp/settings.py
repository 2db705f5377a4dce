"""TcpSettings: what all connections of the TCP server share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TYPE_CHECKING

from nsqd.broker.consumer import Locality
from nsqd.protocol.command_parser import CommandLimits
from nsqd.protocol.identify import ClientSettings, IdentifyLimits
from nsqd.tcp.auth import AuthServers

if TYPE_CHECKING:
    from nsqd.tcp.connection import V2Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """What a connection needs of the options, and whom it asks."""

    commands: CommandLimits
    identify: IdentifyLimits
    max_req_ms: int
    handshake_timeout_s: float
    max_connections: int = 0  # 0 = no limit
    ssl_context: SSLContext | None = None
    is_tls_required: bool = False
    is_topology_aware: bool = False
    auth_servers: AuthServers | None = None  # None: clients need no AUTH
    # Called once per read, for those who poll under dense traffic.
    on_read: Callable[[], object] | None = None
    connections: set["V2Connection"] = field(default_factory=set)

    def find_locality(self, client: ClientSettings, *, is_identified: bool) -> Locality:
        """Return how near a consumer is, if that makes a difference."""
        limits = self.identify
        if not self.is_topology_aware or not is_identified:
            return Locality.GLOBAL
        if limits.topology_zone and client.topology_zone == limits.topology_zone:
            return Locality.ZONE
        if limits.topology_region and client.topology_region == limits.topology_region:
            return Locality.REGION
        return Locality.GLOBAL
