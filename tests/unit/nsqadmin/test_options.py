import dataclasses
from pathlib import Path

import pytest

from nsqadmin.options import COMMAND, Options, ReadOnly, check_options
from nsqd.config import flags
from nsqd.config.flags import CommandLineExit, OptionsError

LOOKUPD = "--lookupd-http-address=127.0.0.1:4161"

# Flag, key in the config file (none for those of the command line), default: of the Go nsqadmin.
GO_FLAGS = {
    "acl-http-header": ("acl_http_header", "X-Forwarded-User"),
    "admin-user": ("admin_users", ""),
    "allow-config-from-cidr": ("allow_config_from_cidr", "127.0.0.1/8"),
    "base-path": ("base_path", "/"),
    "config": (None, ""),
    "dev-static-dir": ("dev_static_dir", ""),
    "graphite-url": ("graphite_url", ""),
    "http-address": ("http_address", "0.0.0.0:4171"),
    "http-client-connect-timeout": ("http_client_connect_timeout", "2s"),
    "http-client-request-timeout": ("http_client_request_timeout", "5s"),
    "http-client-tls-cert": ("http_client_tls_cert", ""),
    "http-client-tls-insecure-skip-verify": ("http_client_tls_insecure_skip_verify", "false"),
    "http-client-tls-key": ("http_client_tls_key", ""),
    "http-client-tls-root-ca-file": ("http_client_tls_root_ca_file", ""),
    "log-level": ("log_level", "info"),
    "log-prefix": ("log_prefix", "[nsqadmin] "),
    "lookupd-http-address": ("nsqlookupd_http_addresses", ""),
    "notification-http-endpoint": ("notification_http_endpoint", ""),
    "nsqd-http-address": ("nsqd_http_addresses", ""),
    "proxy-graphite": ("proxy_graphite", "false"),
    "statsd-counter-format": ("statsd_counter_format", "stats.counters.%s.count"),
    "statsd-gauge-format": ("statsd_gauge_format", "stats.gauges.%s"),
    "statsd-interval": ("statsd_interval", "1m0s"),
    "statsd-prefix": ("statsd_prefix", "nsq.%s"),
    "verbose": (None, "false"),
    "version": (None, "false"),
}


def load(*argv: str) -> Options:
    options = COMMAND.read([LOOKUPD, *argv])
    check_options(options)
    return options


def test_all_26_flags_of_the_go_nsqadmin_are_there() -> None:
    declared = {flag.name: flag for flag in flags.declared_flags(Options).values()}

    assert len(GO_FLAGS) == 26
    assert {
        name: (declared[name].toml_key, declared[name].shown_default()) for name in GO_FLAGS
    } == GO_FLAGS


def test_a_config_file_of_the_go_nsqadmin_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nsqadmin.cfg"
    path.write_text(
        'nsqlookupd_http_addresses = ["a:1", "b:2"]\nadmin_users = ["ada"]\n'
        'http_client_connect_timeout = "7s"\nread_only = "view"\n'
    )

    options = COMMAND.read([f"--config={path}"])

    assert options.lookupd_http_addresses == ("a:1", "b:2")
    assert options.admin_users == ("ada",)
    assert options.http_client_connect_timeout_s == 7.0
    assert options.read_only is ReadOnly.VIEW


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        (
            [LOOKUPD, "--nsqd-http-address=a:1"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            [LOOKUPD, "--http-client-tls-cert=x"],
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            [LOOKUPD, "--allow-config-from-cidr=abc"],
            "failed to parse --allow-config-from-cidr (abc) - invalid CIDR address: abc",
        ),
        ([LOOKUPD, "--admin-user="], "--admin-user must not be empty"),
        ([LOOKUPD, "--admin-user", ""], "--admin-user must not be empty"),
        (
            [LOOKUPD, "--acl-role=ada:king"],
            "--acl-role ada:king: must be name:role, one of viewer, reader, operator, admin",
        ),
        (["--lookupd-http-address=:4161"], "--lookupd-http-address: address :4161 has no host"),
        (["--nsqd-http-address=a"], "--nsqd-http-address: address a is not host:port"),
        (
            [LOOKUPD, "--http-cors-origin=*"],
            "--http-cors-origin: name the sites; * would let every page change things",
        ),
        ([LOOKUPD, "--tls-cert=x"], "--tls-cert and --tls-key must be specified together"),
        ([LOOKUPD, "--graphite-url=ftp://x"], "--graphite-url: not an http or https URL"),
        ([LOOKUPD, "--poll-interval=1ms"], "--poll-interval must be at least 500ms"),
    ],
)
def test_options_that_contradict_are_refused(argv: list[str], text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        check_options(COMMAND.read(argv))

    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("given", "base"), [("/", ""), ("", ""), ("/q", "/q"), ("q/", "/q"), ("//a//b/", "/a/b")]
)
def test_slashes_of_the_base_path_are_put_right(given: str, base: str) -> None:
    assert load(f"--base-path={given}").base == base


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("--read-only", ReadOnly.YES),
        ("--read-only=view", ReadOnly.VIEW),
        ("--read-only=0", ReadOnly.NO),
    ],
)
def test_read_only_is_a_flag_or_a_level(argv: str, wanted: ReadOnly) -> None:
    assert load(argv).read_only is wanted


def test_read_only_of_another_kind_is_refused() -> None:
    with pytest.raises(CommandLineExit, match="must be true, false or view"):
        load("--read-only=maybe")


def test_every_option_can_be_shown() -> None:
    shown = {field.name for field in dataclasses.fields(Options)}

    assert shown == set(flags.declared_flags(Options))
