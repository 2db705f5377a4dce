"""The options as settings of each part of nsqd; only API and statistics see the options whole."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import nsqd
from nsqd.broker.archive.retention import Retention
from nsqd.broker.broker import BrokerSettings
from nsqd.broker.channel import ChannelSettings
from nsqd.broker.queue.backend import DiskSettings
from nsqd.config.flags import OptionsError
from nsqd.config.kinds import TLSRequired
from nsqd.config.options import TOPOLOGY_AWARE_CONSUMPTION, Options
from nsqd.config.token_file import TokenFile
from nsqd.http.client import ClientLimits, HttpClient
from nsqd.lookup.channel_query import ChannelQuery
from nsqd.lookup.peer import PeerSettings
from nsqd.lookup.registration import LookupSettings
from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.identify import IdentifyLimits
from nsqd.protocol.lookup import NsqdIdentity
from nsqd.runtime import tls
from nsqd.runtime.descriptors import Descriptors
from nsqd.runtime.door_counts import DoorCounts
from nsqd.tcp.auth import AuthServers
from nsqd.tcp.connection import TcpSettings, V2Connection


def build_server_context(options: Options) -> ssl.SSLContext:
    """Read the files of the TLS doors.

    Raises:
        OptionsError: with the file and the reason.
    """
    try:
        return tls.build_server_context(
            options.tls_cert,
            options.tls_key,
            client_auth_policy=options.tls_client_auth_policy,
            root_ca_file=options.tls_root_ca_file,
            min_version=options.tls_min_version,
        )
    except tls.TlsConfigError as error:
        raise OptionsError(f"failed to build TLS config - {error}") from error


def build_client_context(options: Options) -> ssl.SSLContext:
    """Read the authorities for requests to other servers.

    Raises:
        OptionsError: with the file and the reason.
    """
    try:
        return tls.build_client_context(options.tls_root_ca_file, options.tls_min_version)
    except tls.TlsConfigError as error:
        raise OptionsError(f"failed to build client TLS config - {error}") from error


def find_token_file(path: str, flag: str) -> TokenFile | None:
    """Read the token of a file, if an option names one.

    Raises:
        OptionsError: it holds none.
    """
    return TokenFile(path, flag=flag) if path else None


def broker_settings(options: Options) -> BrokerSettings:
    """Return the settings of topics, channels and their queues."""
    return BrokerSettings(
        mem_queue_size=options.mem_queue_size,
        disk=DiskSettings(
            data_path=Path(options.data_path or "."),
            max_bytes_per_file=options.max_bytes_per_file,
            max_msg_size=options.max_msg_size,
            sync_every=max(options.sync_every, 1),
            sync_timeout_s=options.sync_timeout_s,
            has_checksums=options.disk_checksums,
        ),
        channel=ChannelSettings(
            max_msg_timeout_s=options.max_msg_timeout_s,
            max_consumers=options.max_channel_consumers,
            latency_quantiles=options.e2e_processing_latency_percentiles,
            latency_window_s=options.e2e_processing_latency_window_time_s,
            is_topology_aware=options.has_experiment(TOPOLOGY_AWARE_CONSUMPTION),
        ),
        retention=Retention(options.retain_bytes, options.retain_time_s),
        limits=options.limits,
    )


def command_limits(options: Options) -> CommandLimits:
    """Return the bounds of commands."""
    return CommandLimits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_defer_ms=int(options.defer_limit_s * 1000),
    )


def identify_limits(options: Options, *, has_tls: bool) -> IdentifyLimits:
    """Return the bounds of a client's negotiation."""
    return IdentifyLimits(
        version=nsqd.PROTOCOL_VERSION,
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ms=int(options.msg_timeout_s * 1000),
        max_msg_timeout_ms=int(options.max_msg_timeout_s * 1000),
        max_heartbeat_interval_ms=int(options.max_heartbeat_interval_s * 1000),
        output_buffer_timeout_ms=int(options.output_buffer_timeout_s * 1000),
        min_output_buffer_timeout_ms=int(options.min_output_buffer_timeout_s * 1000),
        max_output_buffer_timeout_ms=int(options.max_output_buffer_timeout_s * 1000),
        max_output_buffer_size=options.max_output_buffer_size,
        has_tls=has_tls,
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        snappy=options.snappy,
        auth_required=bool(options.auth_http_addresses),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )


def tcp_settings(
    options: Options,
    *,
    ssl_context: ssl.SSLContext | None,
    auth_servers: AuthServers | None,
    on_read: Callable[[], object] | None,
    connections: set[V2Connection],
    counts: DoorCounts,
    descriptors: Descriptors,
) -> TcpSettings:
    """Return the settings that all connections of the TCP door share."""
    return TcpSettings(
        commands=command_limits(options),
        identify=identify_limits(options, has_tls=ssl_context is not None),
        max_req_ms=int(options.max_req_timeout_s * 1000),
        handshake_timeout_s=options.handshake_timeout_s,
        ssl_context=ssl_context,
        is_tls_required=options.tls_required is not TLSRequired.NO,
        auth_servers=auth_servers,
        is_topology_aware=options.has_experiment(TOPOLOGY_AWARE_CONSUMPTION),
        on_read=on_read,
        max_connections=options.max_connections,
        connections=connections,
        counts=counts,
        descriptors=descriptors,
    )


def lookup_settings(
    options: Options,
    client: HttpClient,
    *,
    tcp_port: int,
    http_port: int,
    token_file: TokenFile | None = None,
) -> LookupSettings:
    """Return the settings of the registration with nsqlookupd.

    Args:
        tcp_port, http_port: those in use, announced unless the options name others.
    """
    identity = NsqdIdentity(
        broadcast_address=options.broadcast_address,
        tcp_port=options.broadcast_tcp_port or tcp_port,
        http_port=options.broadcast_http_port or http_port,
        version=nsqd.PROTOCOL_VERSION,
        hostname=socket.gethostname(),
        topology_zone=options.topology_zone,
        topology_region=options.topology_region,
    )
    return LookupSettings(
        peer=PeerSettings(
            identity=identity,
            max_reply_bytes=options.max_body_size,
            find_token=bytes if token_file is None else lambda: token_file.token,
        ),
        query=ChannelQuery(client),
        query_timeout_s=options.http_client_request_timeout_s,
    )


def http_client_limits(options: Options) -> ClientLimits:
    """Return the bounds of requests to auth servers and nsqlookupds.

    No connection is kept: a question is rare, and one that a dead kept connection swallowed would
    cost a client its AUTH.
    """
    return ClientLimits(
        max_idle_connections=0,
        connect_timeout_s=options.http_client_connect_timeout_s,
        request_timeout_s=options.http_client_request_timeout_s,
    )
