"""ClientStats: the figures of one TCP client, publisher or consumer, at one moment."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nsqd.stats.snapshot import ChannelStats
from nsqd.tcp.connection import V2Connection

PROTOCOL_NAME = "V2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One client, at one moment."""

    client_id: str
    hostname: str
    user_agent: str
    remote_address: str
    state: int
    connected_at_s: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    sample_rate: int
    is_deflated: bool
    is_snappy: bool
    topology_zone: str
    topology_region: str
    is_authed: bool
    auth_identity: str
    auth_identity_url: str
    is_tls: bool
    tls_cipher_suite: str
    tls_version: str
    # How many messages it has published, by topic; of one topic only, if the query names one.
    pub_counts: tuple[tuple[str, int], ...]


def read_client(client: V2Connection, *, topic_name: str = "") -> ClientStats:
    """Read a client's figures; with `topic_name`, of its publishes only those to that topic."""
    settings = client.settings
    consumer = client.consumer
    auth = client.auth.state
    tls = client.stream.tls
    if tls is not None and not tls.handshake_done:
        tls = None
    return ClientStats(
        client_id=settings.client_id,
        hostname=settings.hostname,
        user_agent=settings.user_agent,
        remote_address=client.remote_address,
        state=client.parser.admission.state,
        connected_at_s=client.connected_at_s,
        ready_count=0 if consumer is None else consumer.ready_count,
        in_flight_count=0 if consumer is None else len(consumer.in_flight),
        message_count=0 if consumer is None else consumer.message_count,
        finish_count=0 if consumer is None else consumer.finish_count,
        requeue_count=0 if consumer is None else consumer.requeue_count,
        sample_rate=settings.sample_rate,
        is_deflated=settings.deflate,
        is_snappy=settings.snappy,
        topology_zone=settings.topology_zone,
        topology_region=settings.topology_region,
        is_authed=auth is not None and bool(auth.permission_count),
        auth_identity="" if auth is None else auth.identity,
        auth_identity_url="" if auth is None else auth.identity_url,
        is_tls=tls is not None,
        tls_cipher_suite="" if tls is None else tls.cipher_suite,
        tls_version="" if tls is None else tls.version,
        pub_counts=tuple(
            (name, count)
            for name, count in client.pub_counts.items()
            if not topic_name or name == topic_name
        ),
    )


def read_consumers(channel: ChannelStats, *, topic_name: str = "") -> Iterator[ClientStats]:
    """Read the clients of a channel, each when it is asked for."""
    for consumer in channel.consumers:
        # Every consumer of a running daemon is a TCP client, which the broker does not know.
        # One that has left since the channel was read has no connection any more.
        if isinstance(consumer.sink, V2Connection):
            yield read_client(consumer.sink, topic_name=topic_name)


def read_producers(
    clients: Iterable[V2Connection], *, topic_name: str = ""
) -> Iterator[ClientStats]:
    """Read the clients that have published anything, each when it is asked for."""
    for client in list(clients):
        if client.pub_counts:
            yield read_client(client, topic_name=topic_name)
