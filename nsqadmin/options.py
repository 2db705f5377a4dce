"""Every option of nsqadmin, with default, unit, bounds and help, parsed once at the edge.

The first 26 have names, keys and defaults of the Go nsqadmin, so that command lines and config
files carry over; those of Graphite and statsd serve `/render` and `/api/graphite` alone.
`python -m nsqadmin.options` prints them as a table.
"""

# ruff: noqa: RUF009 - flag() makes dataclass fields; ruff takes them for values.

import dataclasses
import enum
import ipaddress
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nsqd.config import flags, kinds, program
from nsqd.config.flags import OptionsError, flag
from nsqd.config.kinds import BOOL, DURATION, INT, TEXT, TEXTS, Kind
from nsqd.config.logs import LogFormat, LogLevel
from nsqd.http.client import Url, UrlError
from nsqd.runtime.listen import split_address

PROGRAM = "nsqadmin"
ROLE_NAMES = ("viewer", "reader", "operator", "admin")
# Options with values that only the operator of this process needs to know.
SECRET_KEYS = frozenset({"graphite_url", "notification_http_endpoint"})


class ReadOnly(enum.Enum):
    """The most that any caller may do: everything of the role, look at messages, or figures."""

    NO = "false"
    YES = "true"
    VIEW = "view"


def _parse_read_only(text: str) -> ReadOnly:
    if text.lower() == ReadOnly.VIEW.value:
        return ReadOnly.VIEW
    try:
        return ReadOnly.YES if kinds.parse_bool(text) else ReadOnly.NO
    except ValueError:
        raise ValueError("must be true, false or view") from None


READ_ONLY: Kind[ReadOnly] = kinds.special(
    "true|false|view",
    _parse_read_only,
    lambda value: value.value,
    to_json=lambda value: value.value,
    is_boolean=True,
)
# Other lists drop an empty item; an empty name of an admin has to be seen to be refused.
NAMES: Kind[tuple[str, ...]] = dataclasses.replace(TEXTS, parse=lambda text: (text,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field per flag. Read by `COMMAND`, or made with keywords."""

    version: bool = program.version_flag()
    config: str = program.config_flag()
    log_level: LogLevel = program.log_level_flag()
    log_prefix: str = program.log_prefix_flag(PROGRAM)
    verbose: bool = program.verbose_flag()

    http_address: str = flag(
        *("http-address", "0.0.0.0:4171", TEXT, "host:port to listen on"), heading="Addresses"
    )
    base_path: str = flag("base-path", "/", TEXT, "prefix of all paths", noun="path")
    lookupd_http_addresses: tuple[str, ...] = flag(
        "lookupd-http-address",
        (),
        TEXTS,
        "host:port of an nsqlookupd, which knows the nodes; may be repeated",
        toml_key="nsqlookupd_http_addresses",
        noun="host:port",
    )
    nsqd_http_addresses: tuple[str, ...] = flag(
        "nsqd-http-address",
        (),
        TEXTS,
        "host:port of an nsqd, where there is no nsqlookupd; may be repeated",
        toml_key="nsqd_http_addresses",
        noun="host:port",
    )
    dev_static_dir: str = flag(
        "dev-static-dir", "", TEXT, "serve the page's files from this directory", noun="dir"
    )

    acl_http_header: str = flag(
        "acl-http-header",
        "X-Forwarded-User",
        TEXT,
        "the header in which a proxy names the user",
        heading="Access",
    )
    admin_users: tuple[str, ...] = flag(
        "admin-user",
        (),
        NAMES,
        "a user who may do everything; others may look. Without any, everybody may do everything",
        toml_key="admin_users",
        noun="name",
    )
    allow_config_from_cidr: str = flag(
        "allow-config-from-cidr",
        "127.0.0.1/8",
        TEXT,
        "who may use /config; empty is everybody",
        noun="cidr",
    )
    notification_http_endpoint: str = flag(
        "notification-http-endpoint",
        "",
        TEXT,
        "each change is posted there as JSON",
        noun="url",
    )

    http_client_connect_timeout_s: float = flag(
        "http-client-connect-timeout",
        2.0,
        DURATION,
        "time to connect to nsqd and nsqlookupd",
        minimum=0.001,
        heading="Calls to nsqd and nsqlookupd",
    )
    http_client_request_timeout_s: float = flag(
        "http-client-request-timeout", 5.0, DURATION, "time for a whole request", minimum=0.001
    )
    http_client_tls_insecure_skip_verify: bool = flag(
        "http-client-tls-insecure-skip-verify", False, BOOL, "verify no certificate"
    )
    http_client_tls_root_ca_file: str = flag(
        "http-client-tls-root-ca-file",
        "",
        TEXT,
        "PEM file with the authorities of their certificates; empty: the system's",
        noun="file",
    )
    http_client_tls_cert: str = flag(
        "http-client-tls-cert", "", TEXT, "PEM file with our certificate for them", noun="file"
    )
    http_client_tls_key: str = flag(
        "http-client-tls-key", "", TEXT, "PEM file with its private key", noun="file"
    )

    graphite_url: str = flag(
        *("graphite-url", "", TEXT, "Graphite, for /render and /api/graphite"),
        noun="url",
        heading="Graphite",
    )
    proxy_graphite: bool = flag("proxy-graphite", False, BOOL, "pass /render on to Graphite")
    statsd_prefix: str = flag(
        "statsd-prefix", "nsq.%s", TEXT, "prefix of nsqd's keys, %s for the host"
    )
    statsd_interval_s: float = flag(
        "statsd-interval",
        60.0,
        DURATION,
        "how often nsqd pushes to statsd",
        minimum=0.001,
    )
    statsd_counter_format: str = flag(
        "statsd-counter-format", "stats.counters.%s.count", TEXT, "how statsd wraps counters"
    )
    statsd_gauge_format: str = flag(
        "statsd-gauge-format", "stats.gauges.%s", TEXT, "how statsd wraps gauges"
    )

    poll_interval_s: float = flag(
        "poll-interval",
        5.0,
        DURATION,
        "how often all nodes are asked for their figures; 30s while nobody looks",
        minimum=0.5,
        heading="Extensions (not in NSQ)",
    )
    history_max_bytes: int = flag(
        "history-max-bytes",
        64 * 1024 * 1024,
        INT,
        "memory for an hour of history; the idlest queues lose theirs first",
        minimum=0,
        noun="bytes",
    )
    log_format: LogFormat = program.log_format_flag()
    acl_roles: tuple[str, ...] = flag(
        "acl-role",
        (),
        TEXTS,
        "name:role for a user of the header, role one of viewer, reader, operator, admin",
        toml_key="acl_roles",
        noun="name:role",
    )
    acl_trusted_cidrs: tuple[str, ...] = flag(
        "acl-trusted-cidr",
        (),
        TEXTS,
        "from where the header is believed; may be repeated; none: from everywhere",
        toml_key="acl_trusted_cidrs",
        noun="cidr",
    )
    http_auth_token_file: str = flag(
        "http-auth-token-file",
        "",
        TEXT,
        "file with one token, for admins, or a line `role token name` for each",
        noun="file",
    )
    read_only: ReadOnly = flag(
        "read-only",
        ReadOnly.NO,
        READ_ONLY,
        "nobody may change anything; view: nor look at messages",
    )
    audit_log: str = flag(
        "audit-log", "", TEXT, "file that gets a JSON line for each change", noun="file"
    )
    nsqd_http_auth_token_file: str = flag(
        "nsqd-http-auth-token-file",
        "",
        TEXT,
        "file with the bearer token that the nsqds ask for; no browser gets it",
        noun="file",
    )
    nsqd_token_hosts: tuple[str, ...] = flag(
        "nsqd-token-hosts",
        (),
        TEXTS,
        "hosts that are sent this token, *.example for all below a name; none: all nodes",
        noun="host",
    )
    lookupd_auth_token_file: str = flag(
        "lookupd-auth-token-file",
        "",
        TEXT,
        "file with the bearer token that the nsqlookupds ask for before a change",
        noun="file",
    )
    peek_max_body: int = flag(
        "peek-max-body",
        64 * 1024,
        INT,
        "bytes of each body in lists of messages",
        minimum=1,
        maximum=8 * 1024 * 1024,
        noun="bytes",
    )
    http_allowed_hosts: tuple[str, ...] = flag(
        "http-allowed-host",
        (),
        TEXTS,
        "a name of this nsqadmin in browsers; none: any, but on loopback only loopback's",
        toml_key="http_allowed_hosts",
        noun="host",
    )
    http_cors_origins: tuple[str, ...] = flag(
        "http-cors-origin",
        (),
        TEXTS,
        "another site whose pages may read and change; may be repeated",
        toml_key="http_cors_origins",
        noun="origin",
    )
    tls_cert: str = flag("tls-cert", "", TEXT, "PEM file: serve https with it", noun="file")
    tls_key: str = flag("tls-key", "", TEXT, "PEM file with its private key", noun="file")
    max_connections: int = flag(
        "max-connections", 0, INT, "connections at a time; 0 is no limit", minimum=0
    )

    @property
    def base(self) -> str:
        """The prefix of all paths: empty, or with a slash at its start and none at its end."""
        parts = [part for part in self.base_path.split("/") if part]
        return "".join(f"/{part}" for part in parts)


def check_options(options: Options) -> None:
    """Hold the options against their bounds, and against each other.

    Raises:
        OptionsError: with the text that follows "failed to instantiate nsqadmin - ".
    """
    flags.check_bounds(options)
    if not options.lookupd_http_addresses and not options.nsqd_http_addresses:
        raise OptionsError("--nsqd-http-address or --lookupd-http-address required")
    if options.lookupd_http_addresses and options.nsqd_http_addresses:
        raise OptionsError("use --nsqd-http-address or --lookupd-http-address not both")
    _check_addresses("http-address", (options.http_address,), lowest_port=0)
    _check_addresses("lookupd-http-address", options.lookupd_http_addresses)
    _check_addresses("nsqd-http-address", options.nsqd_http_addresses)
    for given, missing in (("cert", "key"), ("key", "cert")):
        name = "http_client_tls_"
        if getattr(options, name + given) and not getattr(options, name + missing):
            raise OptionsError(
                f"--http-client-tls-{missing} must be specified with --http-client-tls-{given}"
            )
    if bool(options.tls_cert) != bool(options.tls_key):
        raise OptionsError("--tls-cert and --tls-key must be specified together")
    _check_urls(options)
    _check_cidrs(options)
    _check_users(options)
    if "*" in options.http_cors_origins:
        raise OptionsError(
            "--http-cors-origin: name the sites; * would let every page change things"
        )
    if not options.base.isascii() or not options.base.isprintable() or ":" in options.base:
        raise OptionsError("--base-path must be of plain characters")


def parse_cidr(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Read a network; 127.0.0.1/8 is 127.0.0.0/8.

    Raises:
        ValueError: it is none.
    """
    return ipaddress.ip_network(text, strict=False)


def _spell_roles() -> str:
    return ", ".join(ROLE_NAMES)


def _check_addresses(name: str, addresses: Sequence[str], *, lowest_port: int = 1) -> None:
    for address in addresses:
        pair = split_address(address)
        if pair is None or not lowest_port <= pair[1] < 0x10000:
            raise OptionsError(f"--{name}: address {address} is not host:port")
        if lowest_port and not pair[0]:
            raise OptionsError(f"--{name}: address {address} has no host")


def _check_users(options: Options) -> None:
    for pair in options.acl_roles:
        name, _, role = pair.rpartition(":")
        if not name or role not in ROLE_NAMES:
            raise OptionsError(f"--acl-role {pair}: must be name:role, one of {_spell_roles()}")
    if "" in options.admin_users:
        raise OptionsError("--admin-user must not be empty")


def _check_urls(options: Options) -> None:
    for name, text in (
        ("graphite-url", options.graphite_url),
        ("notification-http-endpoint", options.notification_http_endpoint),
    ):
        try:
            if text:
                Url.parse(text)
        except UrlError as error:
            raise OptionsError(f"--{name}: {error}") from error


def _check_cidrs(options: Options) -> None:
    for name, cidrs in (
        ("allow-config-from-cidr", [options.allow_config_from_cidr]),
        ("acl-trusted-cidr", options.acl_trusted_cidrs),
    ):
        for text in cidrs:
            try:
                if text:
                    parse_cidr(text)
            except ValueError as error:
                raise OptionsError(
                    f"failed to parse --{name} ({text}) - invalid CIDR address: {text}"
                ) from error


COMMAND = program.Program(PROGRAM, Options, check_options)


if __name__ == "__main__":
    sys.stdout.write(flags.markdown_table(Options))
