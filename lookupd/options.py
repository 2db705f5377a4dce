"""Every option of nsqlookupd, with default, unit, bounds and help, parsed once at the edge.

Flag names, TOML keys and defaults are those of the Go nsqlookupd, so that command lines and config
files carry over. Field = flag with underscores; durations end in _s and are seconds.
`python -m lookupd.options` prints them as a table.
"""

# ruff: noqa: RUF009 - flag() makes dataclass fields; ruff takes them for values.

import socket
import sys
from dataclasses import dataclass

from nsqd.config import flags, program
from nsqd.config.flags import OptionsError, flag
from nsqd.config.kinds import DURATION, INT, TEXT
from nsqd.config.logs import LogFormat, LogLevel
from nsqd.runtime.listen import split_address

PROGRAM = "nsqlookupd"

# A timeout shorter than this would hide every producer at once.
_SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field per flag. Read by `COMMAND`, or made with keywords."""

    version: bool = program.version_flag()
    config: str = program.config_flag()
    log_level: LogLevel = program.log_level_flag()
    log_format: LogFormat = program.log_format_flag()
    log_prefix: str = program.log_prefix_flag(PROGRAM)
    verbose: bool = program.verbose_flag()

    tcp_address: str = flag(
        "tcp-address",
        "0.0.0.0:4160",
        TEXT,
        "host:port where nsqd registers",
        heading="Addresses",
    )
    http_address: str = flag(
        "http-address", "0.0.0.0:4161", TEXT, "host:port where consumers and operators ask"
    )
    broadcast_address: str = flag(
        "broadcast-address",
        socket.gethostname,
        TEXT,
        "the name or address of this nsqlookupd, as told to every nsqd",
        default_text="the hostname",
    )

    inactive_producer_timeout_s: float = flag(
        "inactive-producer-timeout",
        300.0,
        DURATION,
        "time without a ping after which a producer is hidden",
        minimum=_SHORTEST_S,
        heading="Registrations",
    )
    tombstone_lifetime_s: float = flag(
        "tombstone-lifetime",
        45.0,
        DURATION,
        "time for which a tombstoned producer stays hidden",
        minimum=0,
    )

    max_connections: int = flag(
        "max-connections",
        0,
        INT,
        "connections at a time, each for TCP and HTTP; 0 is no limit",
        minimum=0,
        heading="Extensions (not in NSQ)",
    )

    auth_token_file: str = flag(
        "auth-token-file",
        "",
        TEXT,
        "file with the token that registrations and changes need; nsqd sends the one of its"
        " --lookupd-auth-token-file, a Go nsqd has none",
        noun="file",
    )


def check_options(options: Options) -> None:
    """Hold the options against their bounds.

    Raises:
        OptionsError: with the text that follows "failed to instantiate nsqlookupd - ".
    """
    flags.check_bounds(options)
    for name in ("tcp_address", "http_address"):
        address = getattr(options, name)
        # Unix sockets are nsqd's alone.
        if split_address(address) is None:
            raise OptionsError(f"--{name.replace('_', '-')}: address {address} is not host:port")


COMMAND = program.Program(PROGRAM, Options, check_options)


if __name__ == "__main__":
    sys.stdout.write(flags.markdown_table(Options))
