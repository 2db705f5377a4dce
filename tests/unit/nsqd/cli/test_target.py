"""Flags, environment, contexts: which of them counts."""

import argparse
from pathlib import Path

import pytest

from nsqd.cli import contexts
from nsqd.cli.arguments import add_common
from nsqd.cli.contexts import Context, Saved
from nsqd.cli.output import CliError, ExitCode
from nsqd.cli.target import find_target, parse_node


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    secret = tmp_path / "secret"
    secret.write_text("hidden\n")
    known = {
        "prod": Context(lookupd=("l1", "l2:9"), auth_secret_file=str(secret), read_only=True),
        "local": Context(nsqd=("here:1:2",)),
    }
    contexts.save(Saved(known, "prod"))


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_common(parser)
    return parser.parse_args(argv)


def test_the_selected_context_counts_without_anything_else() -> None:
    target = find_target(options(), {})

    assert target.lookupds == ("l1", "l2:9")
    assert (target.auth_secret, target.is_read_only, target.context) == ("hidden", True, "prod")
    assert "hidden" not in repr(target)


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        (("-a", "evil:5"), {}),
        ((), {"NSQD_TCP_ADDRESS": "evil:5"}),
        (("-a", "evil:5", "--context", "prod"), {}),
    ],
)
def test_an_address_drops_the_context_and_its_secret(
    argv: tuple[str, ...], environment: dict[str, str]
) -> None:
    target = find_target(options(*argv), environment)

    assert [str(address) for address in target.tcp_addresses] == ["evil:5"]
    assert (target.auth_secret, target.lookupds, target.context) == (None, (), None)


def test_a_flag_comes_before_the_environment_and_that_before_a_context() -> None:
    environment = {"NSQD_TCP_ADDRESS": "env:1,env2:2", "NSQD_HTTP_ADDRESS": "env:7,env2:8"}

    assert find_target(options("-l", "flag"), environment).lookupds == ("flag",)
    assert [str(node) for node in find_target(options(), environment).nodes] == ["env:7", "env2:8"]
    assert find_target(options("--context", "local"), environment).context == "local"
    assert find_target(options(), {"NSQ_CONTEXT": "local"}).context == "local"
    assert str(find_target(options("--no-context"), {}).tcp_addresses[0]) == "127.0.0.1:4150"


def test_an_unknown_context_and_a_bad_address_are_errors() -> None:
    with pytest.raises(CliError) as missing:
        find_target(options("--context", "none"), {})
    with pytest.raises(CliError) as bad:
        find_target(options("-a", "a b"), {})

    assert missing.value.code == ExitCode.MISSING
    assert bad.value.code == ExitCode.USAGE


def test_a_node_has_two_ports() -> None:
    assert str(parse_node("host").http) == "host:4151"
    assert str(parse_node("host:5").http) == "host:6"
    assert str(parse_node("host:5:9").http) == "host:9"
    assert parse_node("/run/nsqd.sock").http is None
