"""Addresses of nodes, and what goes together with them."""

from pathlib import Path

import pytest

from spark_jobs.read.fleet.options import FleetOptions, parse_fleet_options


def parse(**options: str) -> FleetOptions:
    parsed = parse_fleet_options({name.lower(): text for name, text in options.items()})
    assert parsed is not None
    return parsed


def test_addresses_have_a_port_in_the_end() -> None:
    assert parse(lookupd="a, b:1 ,[::1]:2").lookupd == ("a:4161", "b:1", "[::1]:2")
    assert parse(nsqd="a,http://b:1/,a").nsqd == ("a:4151", "http://b:1")
    assert parse(nsqd="a", tls="true").nsqd == ("a:4152",)


def test_without_nodes_there_is_no_fleet() -> None:
    assert parse_fleet_options({"topic": "x"}) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nsqd": "a:x"}, "option nsqd has host:port, with commas, not 'a:x'"),
        ({"nsqd": "a:0"}, "has host:port"),
        ({"nsqd": "a:99999"}, "has host:port"),
        ({"nsqd": "ftp://a:1"}, "has host:port"),
        ({"lookupd": "a:1/path"}, "has host:port"),
        ({"lookupd": "a", "nsqd": "b"}, "exclude each other"),
        ({"lease": "10m"}, "needs the option lookupd or nsqd"),
        ({"nsqd": "a", "lease": "0"}, "at least 1s"),
        ({"nsqd": "a", "authTokenFile": "/none"}, "cannot read /none"),
        ({"nsqd": "a", "tls": "true", "tlsCa": "/none"}, "cannot read /none"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse(**given)


def test_files_are_looked_at_early(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")

    assert parse(nsqd="a", authTokenFile=str(token)).token_file == str(token)
