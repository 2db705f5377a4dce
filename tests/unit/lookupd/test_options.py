"""The flags and config file of nsqlookupd (L-26); Go's flag syntax itself is tested with nsqd."""

from pathlib import Path

import pytest

from lookupd.options import COMMAND, Options, check_options
from nsqd.config.flags import CommandLineExit, OptionsError
from nsqd.config.logs import LogLevel


def test_defaults_are_those_of_nsqlookupd() -> None:  # L-26
    options = Options()

    assert (options.tcp_address, options.http_address) == ("0.0.0.0:4160", "0.0.0.0:4161")
    assert options.inactive_producer_timeout_s == 300.0
    assert options.tombstone_lifetime_s == 45.0
    assert (options.log_prefix, options.log_level) == ("[nsqlookupd] ", LogLevel.INFO)
    assert options.broadcast_address


def test_every_key_of_the_config_file_works(tmp_path: Path) -> None:  # L-26
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text(
        'log_level = "debug"\nlog_prefix = "x "\ntcp_address = "a:1"\nhttp_address = "b:2"\n'
        'broadcast_address = "c"\ninactive_producer_timeout = "1m"\ntombstone_lifetime = 1500\n'
    )

    options = COMMAND.read(["--config", str(config), "-http-address=d:3"])

    assert options == Options(
        config=str(config),
        log_level=LogLevel.DEBUG,
        log_prefix="x ",
        tcp_address="a:1",
        http_address="d:3",
        broadcast_address="c",
        inactive_producer_timeout_s=60.0,
        tombstone_lifetime_s=1.5,
    )


def test_deprecated_verbose_is_taken() -> None:
    assert COMMAND.read(["-verbose", "-tombstone-lifetime=0"]).tombstone_lifetime_s == 0


def test_an_unknown_flag_ends_with_status_2() -> None:
    with pytest.raises(CommandLineExit, match="flag provided but not defined: -data-path") as exit_:
        COMMAND.read(["--data-path=x"])

    assert exit_.value.status == 2


def test_help_names_every_flag() -> None:
    with pytest.raises(CommandLineExit) as exit_:
        COMMAND.read(["--help"])

    assert exit_.value.status == 0
    for name in [
        "config",
        "version",
        "verbose",
        "log-level",
        "log-prefix",
        "tcp-address",
        "http-address",
        "broadcast-address",
        "inactive-producer-timeout",
        "tombstone-lifetime",
    ]:
        assert f"--{name}" in exit_.value.text


@pytest.mark.parametrize("address", ["0.0.0.0:4160", ":4160", "[::1]:0", "localhost:65535"])
def test_good_addresses(address: str) -> None:
    check_options(Options(tcp_address=address, http_address=address))


@pytest.mark.parametrize("address", ["", "localhost", "a:", "a:b", "a:-1", "::1:80", "/x"])
@pytest.mark.parametrize("door", ["tcp", "http"])
def test_bad_addresses_are_named(address: str, door: str) -> None:
    with pytest.raises(OptionsError) as failure:
        check_options(COMMAND.read([f"--{door}-address={address}"]))

    assert str(failure.value) == f"--{door}-address: address {address} is not host:port"


@pytest.mark.parametrize(
    "options", [Options(inactive_producer_timeout_s=0.0), Options(tombstone_lifetime_s=-1.0)]
)
def test_durations_have_bounds(options: Options) -> None:
    with pytest.raises(OptionsError, match="must be at least"):
        check_options(options)


def test_defaults_are_within_their_bounds() -> None:
    check_options(Options())
