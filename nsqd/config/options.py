"""Every option of nsqd, with default, unit, bounds and help, parsed once at the edge.

Flag names, TOML keys, defaults and stored integers are nsqd's, so that command lines, config files
and GET /config carry over. Field = flag with underscores; durations end in _s and are seconds;
options that repeat are tuples. `python -m nsqd.config.options` prints the table of the README.
"""

# ruff: noqa: RUF009 - flag() makes dataclass fields; ruff takes them for values.

import hashlib
import socket
import ssl
import sys
import zlib
from dataclasses import dataclass

from nsqd.config import flags, program
from nsqd.config.flags import OptionsError, flag, group
from nsqd.config.kinds import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    TEXT,
    TEXTS,
    TLS_REQUIRED,
    TLS_VERSION,
    TLSRequired,
)
from nsqd.config.limits import Limits
from nsqd.config.logs import LogFormat, LogLevel

PROGRAM = "nsqd"

# A timer shorter than this would only spin.
_SHORTEST_S = 1e-6
_PORT_MAX = 65535
_NODE_ID_COUNT = 1024

TOPOLOGY_AWARE_CONSUMPTION = "topology-aware-consumption"


def default_node_id(hostname: str | None = None) -> int:
    """Return the node id that the Go nsqd derives from the hostname, so that nodes keep theirs."""
    name = socket.gethostname() if hostname is None else hostname
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % _NODE_ID_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field per flag. Read by `COMMAND`, or made with keywords.

    `check_values`, `check_tls` and `check_services` say whether the values make sense.
    """

    version: bool = program.version_flag()
    config: str = program.config_flag()
    log_level: LogLevel = program.log_level_flag()
    log_prefix: str = program.log_prefix_flag(PROGRAM)
    node_id: int = flag(
        "node-id",
        default_node_id,
        INT,
        "part of every message id, 0 to 1023; must differ between daemons",
        default_text="from the hostname",
        toml_key="id",
    )
    verbose: bool = program.verbose_flag()
    worker_id: bool = flag("worker-id", False, BOOL, "no effect, use --node-id", in_config=False)

    tcp_address: str = flag(
        "tcp-address",
        "0.0.0.0:4150",
        TEXT,
        "host:port for clients; anything else is the path of a unix socket",
        heading="Addresses",
        noun="address",
    )
    http_address: str = flag(
        "http-address",
        "0.0.0.0:4151",
        TEXT,
        "host:port or unix socket for HTTP; empty for none",
        noun="address",
    )
    https_address: str = flag(
        "https-address",
        "0.0.0.0:4152",
        TEXT,
        "host:port for HTTPS; needs --tls-cert and --tls-key",
        noun="address",
    )
    broadcast_address: str = flag(
        "broadcast-address",
        socket.gethostname,
        TEXT,
        "the name or address that nsqlookupd gives to consumers",
        default_text="the hostname",
        noun="host",
    )
    broadcast_tcp_port: int = flag(
        "broadcast-tcp-port",
        0,
        INT,
        "the TCP port that nsqlookupd gives to consumers; 0 is the real one",
        minimum=0,
        maximum=_PORT_MAX,
        noun="port",
    )
    broadcast_http_port: int = flag(
        "broadcast-http-port",
        0,
        INT,
        "the HTTP port that nsqlookupd gives out; 0 is the real one",
        minimum=0,
        maximum=_PORT_MAX,
        noun="port",
    )
    lookupd_tcp_addresses: tuple[str, ...] = flag(
        "lookupd-tcp-address",
        (),
        TEXTS,
        "host:port of an nsqlookupd to register with; repeatable",
        toml_key="nsqlookupd_tcp_addresses",
        noun="address",
    )
    topology_region: str = flag("topology-region", "", TEXT, "region this daemon is in")
    topology_zone: str = flag("topology-zone", "", TEXT, "zone this daemon is in")

    data_path: str = flag(
        "data-path",
        "",
        TEXT,
        "existing directory for queues and metadata",
        default_text="the current directory",
        heading="Queues and disk",
        noun="directory",
    )
    mem_queue_size: int = flag(
        "mem-queue-size",
        10_000,
        INT,
        "messages kept in memory per topic and per channel; the rest goes to disk",
        minimum=0,
    )
    max_bytes_per_file: int = flag(
        "max-bytes-per-file",
        100 * 2**20,
        INT,
        "bytes in a disk queue's file",
        minimum=1,
        noun="bytes",
    )
    sync_every: int = flag(
        "sync-every",
        2500,
        INT,
        "messages between two fsyncs of a disk queue; with 1, a publish that goes to disk is"
        " answered after its fsync, which many share; 0 is as 1",
        minimum=0,
    )
    sync_timeout_s: float = flag(
        "sync-timeout", 2.0, DURATION, "longest time between two fsyncs", minimum=_SHORTEST_S
    )
    queue_scan_worker_pool_max: int = flag(
        "queue-scan-worker-pool-max", 4, INT, "no effect: timeouts are timers, nothing is scanned"
    )
    queue_scan_selection_count: int = flag(
        "queue-scan-selection-count", 20, INT, "no effect: timeouts are timers, nothing is scanned"
    )

    msg_timeout_s: float = flag(
        "msg-timeout",
        60.0,
        DURATION,
        "time a consumer has to finish a message before it is requeued",
        minimum=_SHORTEST_S,
        heading="Messages",
    )
    max_msg_timeout_s: float = flag(
        "max-msg-timeout",
        900.0,
        DURATION,
        "longest msg-timeout a client may ask for, and longest time TOUCH can add up to",
        minimum=_SHORTEST_S,
    )
    max_msg_size: int = flag(
        "max-msg-size", 2**20, INT, "bytes in a message body", minimum=1, noun="bytes"
    )
    max_body_size: int = flag(
        "max-body-size", 5 * 2**20, INT, "bytes in a command's body", minimum=1, noun="bytes"
    )
    max_req_timeout_s: float = flag(
        "max-req-timeout", 3600.0, DURATION, "longest delay a REQ may ask for", minimum=0
    )
    max_defer_timeout_s: float = flag(
        "max-defer-timeout",
        0.0,
        DURATION,
        "longest delay a deferred publish may ask for; 0s means --max-req-timeout",
        minimum=0,
    )

    max_heartbeat_interval_s: float = flag(
        "max-heartbeat-interval",
        60.0,
        DURATION,
        "longest time between heartbeats a client may ask for",
        minimum=_SHORTEST_S,
        heading="Clients",
    )
    max_rdy_count: int = flag("max-rdy-count", 2500, INT, "highest RDY of a client", minimum=1)
    max_output_buffer_size: int = flag(
        "max-output-buffer-size",
        64 * 2**10,
        INT,
        "largest output buffer a client may ask for, in bytes",
        minimum=1,
        noun="bytes",
    )
    max_output_buffer_timeout_s: float = flag(
        "max-output-buffer-timeout",
        30.0,
        DURATION,
        "longest time between flushes a client may ask for",
        minimum=_SHORTEST_S,
    )
    min_output_buffer_timeout_s: float = flag(
        "min-output-buffer-timeout",
        0.025,
        DURATION,
        "shortest time between flushes a client may ask for",
        minimum=0,
    )
    output_buffer_timeout_s: float = flag(
        "output-buffer-timeout",
        0.25,
        DURATION,
        "longest time that output waits in the buffer, if the client does not say",
        minimum=_SHORTEST_S,
    )
    max_channel_consumers: int = flag(
        "max-channel-consumers", 0, INT, "consumers of one channel; 0 is no limit", minimum=0
    )

    auth_http_addresses: tuple[str, ...] = flag(
        "auth-http-address",
        (),
        TEXTS,
        "host:port or URL of an auth server; with one, clients must AUTH; repeatable",
        toml_key="auth_http_addresses",
        heading="Auth server and HTTP calls",
        noun="address",
    )
    auth_http_request_method: str = flag(
        "auth-http-request-method",
        "get",
        TEXT,
        "how to ask the auth server: get or post",
        noun="get|post",
    )
    http_client_connect_timeout_s: float = flag(
        "http-client-connect-timeout",
        2.0,
        DURATION,
        "time to connect to an auth server or nsqlookupd",
        minimum=_SHORTEST_S,
    )
    http_client_request_timeout_s: float = flag(
        "http-client-request-timeout",
        5.0,
        DURATION,
        "time for the whole request to an auth server or nsqlookupd",
        minimum=_SHORTEST_S,
    )

    tls_cert: str = flag(
        "tls-cert", "", TEXT, "PEM file with the certificate", heading="TLS", noun="file"
    )
    tls_key: str = flag("tls-key", "", TEXT, "PEM file with the private key", noun="file")
    tls_client_auth_policy: str = flag(
        "tls-client-auth-policy",
        "",
        TEXT,
        "ask clients for a certificate: require (any) or require-verify (one that verifies);"
        " turns --tls-required on",
        noun="require|require-verify",
    )
    tls_root_ca_file: str = flag(
        "tls-root-ca-file",
        "",
        TEXT,
        "PEM file with the authorities for client certificates and outgoing HTTPS",
        noun="file",
    )
    tls_required: TLSRequired = flag(
        "tls-required",
        TLSRequired.NO,
        TLS_REQUIRED,
        "refuse clients without TLS; tcp-https leaves plain HTTP open (write --tls-required=...)",
    )
    tls_min_version: ssl.TLSVersion = flag(
        "tls-min-version", ssl.TLSVersion.TLSv1_2, TLS_VERSION, "oldest TLS version to accept"
    )

    deflate: bool = flag(
        "deflate", True, BOOL, "let clients negotiate deflate", heading="Compression"
    )
    max_deflate_level: int = flag(
        "max-deflate-level", 6, INT, "highest deflate level a client may ask for, 1 to 9"
    )
    snappy: bool = flag("snappy", True, BOOL, "let clients negotiate snappy")

    statsd_address: str = flag(
        "statsd-address",
        "",
        TEXT,
        "UDP host:port of a statsd to push to; empty turns it off",
        heading="Statistics",
        noun="address",
    )
    statsd_prefix: str = flag(
        "statsd-prefix", "nsq.%s", TEXT, "start of statsd keys; %s is this daemon's address"
    )
    statsd_interval_s: float = flag(
        "statsd-interval", 60.0, DURATION, "time between two pushes to statsd", minimum=_SHORTEST_S
    )
    statsd_mem_stats: bool = flag(
        "statsd-mem-stats", True, BOOL, "push memory and garbage collection figures too"
    )
    statsd_udp_packet_size: int = flag(
        "statsd-udp-packet-size", 508, INT, "bytes in a statsd packet", minimum=1, noun="bytes"
    )
    statsd_exclude_ephemeral: bool = flag(
        "statsd-exclude-ephemeral", False, BOOL, "leave out ephemeral topics and channels"
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = flag(
        "e2e-processing-latency-percentile",
        (),
        FLOATS,
        "percentiles of the time from publish to finish to keep, each above 0 and up to 1.0,"
        " as in 1.0,0.99,0.95; repeatable",
        toml_key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_s: float = flag(
        "e2e-processing-latency-window-time",
        600.0,
        DURATION,
        "how far back the percentiles look",
        minimum=_SHORTEST_S,
    )

    enable_experiment: tuple[str, ...] = flag(
        "enable-experiment",
        (),
        TEXTS,
        f"turn on an experiment of NSQ; repeatable; known: {TOPOLOGY_AWARE_CONSUMPTION}",
        heading="Experiments",
        noun="name",
    )

    spin_poll_s: float = flag(
        "spin-poll",
        50e-6,
        DURATION,
        "under dense traffic, poll the sockets this long before sleeping; 0s never does;"
        " only with more than one core, and while the machine is not busy",
        minimum=0,
        heading="Extensions (not in NSQ)",
    )
    log_format: LogFormat = program.log_format_flag()
    disk_checksums: bool = flag(
        "disk-checksums",
        True,
        BOOL,
        "write a checksum of every message on disk into a file beside it, and deliver none that its"
        " checksum denies",
    )
    min_free_disk: int = flag(
        "min-free-disk",
        0,
        INT,
        "refuse publishes while less than this is free on the disk of --data-path, so that what"
        " was taken before can still be saved; 0 is no limit",
        minimum=0,
        noun="bytes",
    )
    max_connections: int = flag(
        "max-connections",
        0,
        INT,
        "connections at a time, each for TCP, HTTP and HTTPS; 0 is no limit",
        minimum=0,
    )
    handshake_timeout_s: float = flag(
        "handshake-timeout",
        10.0,
        DURATION,
        "time a new connection has to send its four bytes of protocol version",
        minimum=_SHORTEST_S,
    )

    retain_bytes: int = flag(
        "retain-bytes",
        0,
        INT,
        "history to keep of each topic, consumed or not, under archive/ in the data path;"
        " the oldest goes beyond so many bytes; 0 is no bound",
        minimum=0,
        noun="bytes",
    )
    retain_time_s: float = flag(
        "retain-time",
        0.0,
        DURATION,
        "the same, for messages of that age; 0s is no bound, and with neither nothing is kept",
        minimum=0,
    )

    limits: Limits = group(Limits)

    metrics_max_queues: int = flag(
        "metrics-max-queues",
        10_000,
        INT,
        "topics and channels that /metrics shows one by one; the rest are summed up",
        minimum=0,
    )

    drain_timeout_s: float = flag(
        "drain-timeout",
        30.0,
        DURATION,
        "after POST /drain, longest time for consumers to empty the channels",
        minimum=0,
    )
    analytics: bool = flag(
        "analytics",
        True,
        BOOL,
        "serve the messages of queues and archives for analysis over HTTP: /snapshot, /segments",
    )
    snapshot_max_lease_s: float = flag(
        "snapshot-max-lease",
        3600.0,
        DURATION,
        "longest time for which a snapshot keeps the files that it has listed",
        minimum=1,
    )
    snapshot_max_leases: int = flag(
        "snapshot-max-leases",
        16,
        INT,
        "snapshots at a time",
        minimum=0,
    )
    snapshot_max_bytes: int = flag(
        "snapshot-max-bytes",
        256 * 2**30,
        INT,
        "bytes on disk that all snapshots together may keep",
        minimum=0,
    )
    console: bool = flag("console", True, BOOL, "serve the page for browsers below /console/")
    http_cors_origins: tuple[str, ...] = flag(
        "http-cors-origin",
        (),
        TEXTS,
        "origin whose pages may use the HTTP API, or * for all; repeatable",
        toml_key="http_cors_origins",
        noun="origin",
    )
    http_allowed_hosts: tuple[str, ...] = flag(
        "http-allowed-host",
        (),
        TEXTS,
        "host name by which browsers may use the HTTP API, or * for all; repeatable; without it,"
        " those of loopback if --http-address is on loopback, else all",
        toml_key="http_allowed_hosts",
        noun="name",
    )
    http_auth_token_file: str = flag(
        "http-auth-token-file",
        "",
        TEXT,
        "file with the bearer token that HTTP calls need to publish or change anything",
        noun="file",
    )

    lookupd_auth_token_file: str = flag(
        "lookupd-auth-token-file",
        "",
        TEXT,
        "file with the token to send to nsqlookupds that ask for one (their --auth-token-file)",
        noun="file",
    )

    def __post_init__(self) -> None:
        # As in nsqd: asking clients for certificates makes TLS required.
        if self.tls_client_auth_policy and self.tls_required is TLSRequired.NO:
            object.__setattr__(self, "tls_required", TLSRequired.EVERYWHERE)

    @property
    def defer_limit_s(self) -> float:
        """The longest delay of a deferred publish."""
        return self.max_defer_timeout_s or self.max_req_timeout_s

    def has_experiment(self, name: str) -> bool:
        """Say whether that experiment was turned on."""
        return name in self.enable_experiment


def config_value(options: Options, toml_key: str) -> object:
    """Return the option as GET /config/:opt gives it: durations in ns, enums as integers.

    Raises:
        KeyError: there is no such option, or only the command line has it.
    """
    return flags.config_value(options, toml_key)


def check_values(options: Options) -> None:
    """Make start-up checks 2 and 3 of nsqd, and check the bounds of all other options.

    Raises:
        OptionsError: with the text that follows "failed to instantiate nsqd - ".
    """
    if not 1 <= options.max_deflate_level <= 9:
        raise OptionsError("--max-deflate-level must be [1,9]")
    if not 0 <= options.node_id < _NODE_ID_COUNT:
        raise OptionsError("--node-id must be [0,1024)")
    if options.tls_client_auth_policy not in {"", "require", "require-verify"}:
        raise OptionsError("--tls-client-auth-policy must be require or require-verify")
    if not options.tcp_address:
        raise OptionsError("--tcp-address must not be empty")
    flags.check_bounds(options)


def check_tls(options: Options) -> None:
    """Make start-up check 5, when the TLS files (4) have been read.

    Raises:
        OptionsError: as in `check_values`.
    """
    has_files = options.tls_cert or options.tls_key
    if options.tls_required is not TLSRequired.NO and not has_files:
        raise OptionsError("cannot require TLS client connections without TLS key and cert")


def check_services(options: Options) -> None:
    """Make start-up checks 7 and 8, when the CA file (6) has been read.

    Raises:
        OptionsError: as in `check_values`.
    """
    if options.auth_http_request_method not in {"get", "post"}:
        raise OptionsError("--auth-http-request-method must be post or get")
    for percentile in options.e2e_processing_latency_percentiles:
        if not 0 < percentile <= 1:
            shown = str(percentile).removesuffix(".0")
            raise OptionsError(f"invalid E2E processing latency percentile: {shown}")


def check_options(options: Options) -> None:
    """Make all checks that read no file, in nsqd's order.

    Raises:
        OptionsError: as in `check_values`.
    """
    check_values(options)
    check_tls(options)
    check_services(options)


def markdown_table() -> str:
    """Return the options as Markdown, for the README."""
    return flags.markdown_table(Options)


COMMAND = program.Program(PROGRAM, Options, check_options)


if __name__ == "__main__":
    sys.stdout.write(markdown_table())
