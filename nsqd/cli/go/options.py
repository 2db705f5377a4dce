"""Flags of Go's tools in Go's syntax, and the options of go-nsq's Config."""

from __future__ import annotations

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
            UsageError: values that cannot be used; exit code 1, as in Go.
        """
        options = dict(self.connection)
        if self.tls.pop("tls_v1", False) or self.tls:
            options["tls"] = Tls(**self.tls)
        try:
            settings = Settings(**options)
            if settings.tls is not None:
                settings.tls.make_context()
        except (ValueError, OSError) as error:
            raise UsageError(str(error)) from error
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


def _duration(text: str) -> float:
    # go-nsq takes a plain number as milliseconds.
    return int(text) / 1000 if text.isdigit() else parse_duration(text)


_CONNECTION: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "dial_timeout": ("connect_timeout", _duration),
    "client_id": ("client_id", str),
    "hostname": ("hostname", str),
    "user_agent": ("user_agent", str),
    "topology_region": ("topology_region", str),
    "topology_zone": ("topology_zone", str),
    "heartbeat_interval": ("heartbeat_interval", _duration),
    "sample_rate": ("sample_rate", int),
    "deflate_level": ("deflate_level", int),
    "output_buffer_size": ("output_buffer_size", int),
    "output_buffer_timeout": ("output_buffer_timeout", _duration),
    "msg_timeout": ("msg_timeout", _duration),
    "auth_secret": ("auth_secret", str),
}
_CONSUMER: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "lookupd_poll_interval": ("lookupd_interval", _duration),
    "max_attempts": ("max_attempts", int),
    "default_requeue_delay": ("requeue_delay", _duration),
    "max_requeue_delay": ("max_requeue_delay", _duration),
    "skip_lookupd_authorization": ("lookupd_authorization", lambda text: not parse_bool(text)),
}
# Fields of BackoffPolicy; a longest pause of 0 is no backoff at all.
_BACKOFF: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "max_backoff_duration": ("max_pause", _duration),
    "backoff_multiplier": ("unit", _duration),
    "backoff_strategy": ("jitter", {"exponential": None, "full_jitter": "full"}.__getitem__),
}
_TLS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "tls_v1": ("tls_v1", parse_bool),
    "tls_root_ca_file": ("ca", str),
    "tls_cert": ("cert", str),
    "tls_key": ("key", str),
}
# Known, checked, and without a meaning here: our client does it by itself, or in another way.
_IGNORED: Final = frozenset(
    {
        "read_timeout",
        "write_timeout",
        "local_addr",
        "lookupd_poll_jitter",
        "lookupd_poll_timeout",
        "low_rdy_idle_timeout",
        "low_rdy_timeout",
        "rdy_redistribute_interval",
        "max_msg_size",
    }
)
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
        config.max_in_flight = int(value)
    elif key in ("snappy", "deflate"):
        if parse_bool(value):
            config.connection["compression"] = key
    elif key == "tls_insecure_skip_verify":
        config.tls["verifies"] = not parse_bool(value)
    elif key == "tls_min_version":
        config.tls["min_version"] = _TLS_VERSIONS[value]
    elif key not in _IGNORED:
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
