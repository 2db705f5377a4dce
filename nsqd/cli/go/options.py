"""Flags of Go's tools in Go's syntax, and the options of go-nsq's Config."""

from __future__ import annotations

import math
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nsqd import PROTOCOL_VERSION
from nsqd.client import BackoffPolicy, Message
from nsqd.client.settings import Settings, Tls
from nsqd.config.flags import CommandLineExit, load
from nsqd.config.kinds import parse_bool, parse_duration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OptionsT = TypeVar("OptionsT", bound="DataclassInstance")

VERSION: Final = f"v{PROTOCOL_VERSION}"


class UsageError(Exception):
    """A wrong or missing flag of a tool; `code` is the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def parse(
    options: type[OptionsT],
    argv: Sequence[str] | None,
    program: str,
    rest: list[str] | None = None,
) -> OptionsT:
    """Read the command line.

    Args:
        rest: gets the arguments behind the flags.

    Raises:
        CommandLineExit: help was asked for, or a flag is wrong.
    """
    return load(options, sys.argv[1:] if argv is None else argv, program=program, rest=rest)


def run_tool(main: Callable[[], int]) -> int:
    """Run a tool; print what ends it early, and return its exit code."""
    try:
        return main()
    except CommandLineExit as early:
        print(early.text, file=sys.stderr)
        return early.status
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.code


@dataclass(slots=True)
class GoNsqConfig:
    """The options of go-nsq as arguments of our client."""

    connection: dict[str, Any] = field(default_factory=dict)
    consumer: dict[str, Any] = field(default_factory=dict)
    tls: dict[str, Any] = field(default_factory=dict)
    backoff: dict[str, Any] = field(default_factory=dict)
    max_in_flight: int | None = None

    def connection_options(self) -> dict[str, Any]:
        """Return the keyword arguments of producers and consumers.

        Raises:
            UsageError: values that cannot be used; exit codes as in Go.
        """
        options = dict(self.connection)
        if self.tls.pop("tls_v1", False) or self.tls:
            options["tls"] = Tls(**self.tls)
        try:
            settings = Settings(**options)
            if settings.tls is not None:
                settings.tls.make_context()
        except ValueError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"a file of the tls options: {error.strerror or error}", 2) from error
        return options

    def consumer_options(self, *, on_give_up: Callable[[Message], None]) -> dict[str, Any]:
        """Return the keyword arguments of a consumer, those of its connections included.

        Args:
            on_give_up: for messages that max_attempts gives up.
        """
        options = {**self.connection_options(), **self.consumer}
        if options.get("max_attempts"):
            options["on_give_up"] = on_give_up
        if self.backoff:
            policy = BackoffPolicy(**self.backoff)
            options["backoff"] = policy if policy.max_pause else None
        return options


def _bounded(
    convert: Callable[[str], float], least: float, most: float = math.inf
) -> Callable[[str], Any]:
    """Return a converter that refuses what go-nsq refuses."""

    def read(text: str) -> float:
        value = convert(text)
        if not least <= value <= most:
            raise ValueError(f"not between {least:g} and {most:g}")
        return value

    return read


def _local_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError("missing port in address")
    return host.strip("[]"), int(port)


# The bounds are those of go-nsq's Config; durations in seconds.
_CONNECTION: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "dial_timeout": ("connect_timeout", parse_duration),
    "local_addr": ("local_address", _local_address),
    "client_id": ("client_id", str),
    "hostname": ("hostname", str),
    "user_agent": ("user_agent", str),
    "topology_region": ("topology_region", str),
    "topology_zone": ("topology_zone", str),
    "heartbeat_interval": ("heartbeat_interval", parse_duration),
    "sample_rate": ("sample_rate", _bounded(int, 0, 99)),
    "deflate_level": ("deflate_level", _bounded(int, 1, 9)),
    "output_buffer_size": ("output_buffer_size", int),
    "output_buffer_timeout": ("output_buffer_timeout", parse_duration),
    "msg_timeout": ("msg_timeout", _bounded(parse_duration, 0)),
    "auth_secret": ("auth_secret", str),
}
_CONSUMER: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "lookupd_poll_interval": ("lookupd_interval", _bounded(parse_duration, 0.01, 300)),
    "max_attempts": ("max_attempts", _bounded(int, 0, 65535)),
    "default_requeue_delay": ("requeue_delay", _bounded(parse_duration, 0, 3600)),
    "max_requeue_delay": ("max_requeue_delay", _bounded(parse_duration, 0, 3600)),
    "skip_lookupd_authorization": ("lookupd_authorization", lambda text: not parse_bool(text)),
}
# Fields of BackoffPolicy; a longest pause of 0 is no backoff at all.
_BACKOFF: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "max_backoff_duration": ("max_pause", _bounded(parse_duration, 0, 3600)),
    "backoff_multiplier": ("unit", _bounded(parse_duration, 0, 3600)),
    "backoff_strategy": ("jitter", {"exponential": None, "full_jitter": "full"}.__getitem__),
}
_TLS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "tls_v1": ("tls_v1", parse_bool),
    "tls_root_ca_file": ("ca", str),
    "tls_cert": ("cert", str),
    "tls_key": ("key", str),
}
# Known, checked, and without a meaning here: our client does it by itself, or in another way.
_IGNORED: Final[dict[str, Callable[[str], Any]]] = {
    "read_timeout": _bounded(parse_duration, 0.1, 300),
    "write_timeout": _bounded(parse_duration, 0.1, 300),
    "lookupd_poll_jitter": _bounded(float, 0, 1),
    "lookupd_poll_timeout": parse_duration,
    "low_rdy_idle_timeout": _bounded(parse_duration, 1, 300),
    "low_rdy_timeout": _bounded(parse_duration, 1, 300),
    "rdy_redistribute_interval": _bounded(parse_duration, 0.001, 5),
    "max_msg_size": _bounded(int, 0),
}
_TLS_VERSIONS: Final = {
    "ssl3.0": ssl.TLSVersion.TLSv1_2,
    "tls1.0": ssl.TLSVersion.TLSv1_2,
    "tls1.1": ssl.TLSVersion.TLSv1_2,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def read_go_nsq(given: Sequence[str], flag_name: str) -> GoNsqConfig:
    """Read `key,value` pairs; a key alone is true, and dashes count as underscores.

    Raises:
        UsageError: a key is unknown or a value wrong; exit code 2.
    """
    config = GoNsqConfig()
    for text in given:
        name, _, value = text.partition(",")
        try:
            _apply(config, name.replace("-", "_"), value if "," in text else "true")
        except (ValueError, KeyError) as error:
            raise UsageError(f'invalid value "{text}" for flag -{flag_name}: {error}', 2) from error
    return config


def _apply(config: GoNsqConfig, key: str, value: str) -> None:
    for table, values in (
        (_CONNECTION, config.connection),
        (_CONSUMER, config.consumer),
        (_TLS, config.tls),
        (_BACKOFF, config.backoff),
    ):
        if key in table:
            name, convert = table[key]
            values[name] = convert(value)
            return
    if key == "max_in_flight":
        config.max_in_flight = _bounded(int, 0)(value)
    elif key in ("snappy", "deflate"):
        if parse_bool(value):
            config.connection["compression"] = key
    elif key == "tls_insecure_skip_verify":
        config.tls["verifies"] = not parse_bool(value)
    elif key == "tls_min_version":
        config.tls["min_version"] = _TLS_VERSIONS[value]
    elif key in _IGNORED:
        _IGNORED[key](value)
    else:
        raise ValueError(f"unknown option {key}")


def log_give_up(message: Message) -> None:
    """Tell of a message that `--consumer-opt=max_attempts,N` gives up."""
    text = f"message {message.id.decode()} given up after {message.attempts - 1} attempts"
    print(f"{text}, {len(message.body)} bytes", file=sys.stderr)


def check_max_in_flight(count: int) -> None:
    """Want no negative number.

    Raises:
        UsageError: it is.
    """
    if count < 0:
        raise UsageError(f"invalid MaxInFlight ! {count} < 0")


def check_addresses(nsqds: Sequence[str], lookupds: Sequence[str], name: str) -> None:
    """Want nsqds or nsqlookupds, but not both.

    Raises:
        UsageError: there are none, or both.
    """
    if not nsqds and not lookupds:
        raise UsageError(f"--{name} or --lookupd-http-address required")
    if nsqds and lookupds:
        raise UsageError(f"use --{name} or --lookupd-http-address not both")
