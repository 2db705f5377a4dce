"""nsqd's options: names, defaults, the config file of NSQ, start-up checks, GET /config."""

import dataclasses
import re
import socket
import ssl
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from nsqd.config.flags import CommandLineExit, ConfigError, OptionsError, declared_flags
from nsqd.config.kinds import TLSRequired
from nsqd.config.limits import Limits
from nsqd.config.logs import LogLevel
from nsqd.config.options import (
    COMMAND,
    Options,
    check_options,
    check_services,
    check_tls,
    check_values,
    config_value,
    default_node_id,
    markdown_table,
)

# Flag, key in the config file, and default as GET /config shows it: the table of the reference.
REFERENCE = [
    ("log-level", "log_level", 2),
    ("log-prefix", "log_prefix", "[nsqd] "),
    ("node-id", "id", default_node_id(socket.gethostname())),
    ("tcp-address", "tcp_address", "0.0.0.0:4150"),
    ("http-address", "http_address", "0.0.0.0:4151"),
    ("https-address", "https_address", "0.0.0.0:4152"),
    ("broadcast-address", "broadcast_address", socket.gethostname()),
    ("broadcast-tcp-port", "broadcast_tcp_port", 0),
    ("broadcast-http-port", "broadcast_http_port", 0),
    ("lookupd-tcp-address", "nsqlookupd_tcp_addresses", []),
    ("auth-http-address", "auth_http_addresses", []),
    ("auth-http-request-method", "auth_http_request_method", "get"),
    ("http-client-connect-timeout", "http_client_connect_timeout", 2 * 10**9),
    ("http-client-request-timeout", "http_client_request_timeout", 5 * 10**9),
    ("topology-region", "topology_region", ""),
    ("topology-zone", "topology_zone", ""),
    ("data-path", "data_path", ""),
    ("mem-queue-size", "mem_queue_size", 10000),
    ("max-bytes-per-file", "max_bytes_per_file", 104857600),
    ("sync-every", "sync_every", 2500),
    ("sync-timeout", "sync_timeout", 2 * 10**9),
    ("queue-scan-worker-pool-max", "queue_scan_worker_pool_max", 4),
    ("queue-scan-selection-count", "queue_scan_selection_count", 20),
    ("msg-timeout", "msg_timeout", 60 * 10**9),
    ("max-msg-timeout", "max_msg_timeout", 900 * 10**9),
    ("max-msg-size", "max_msg_size", 1048576),
    ("max-body-size", "max_body_size", 5242880),
    ("max-req-timeout", "max_req_timeout", 3600 * 10**9),
    ("max-heartbeat-interval", "max_heartbeat_interval", 60 * 10**9),
    ("max-rdy-count", "max_rdy_count", 2500),
    ("max-output-buffer-size", "max_output_buffer_size", 65536),
    ("max-output-buffer-timeout", "max_output_buffer_timeout", 30 * 10**9),
    ("min-output-buffer-timeout", "min_output_buffer_timeout", 25 * 10**6),
    ("output-buffer-timeout", "output_buffer_timeout", 250 * 10**6),
    ("max-channel-consumers", "max_channel_consumers", 0),
    ("statsd-address", "statsd_address", ""),
    ("statsd-prefix", "statsd_prefix", "nsq.%s"),
    ("statsd-interval", "statsd_interval", 60 * 10**9),
    ("statsd-mem-stats", "statsd_mem_stats", True),
    ("statsd-udp-packet-size", "statsd_udp_packet_size", 508),
    ("statsd-exclude-ephemeral", "statsd_exclude_ephemeral", False),
    ("e2e-processing-latency-percentile", "e2e_processing_latency_percentiles", []),
    ("e2e-processing-latency-window-time", "e2e_processing_latency_window_time", 600 * 10**9),
    ("tls-cert", "tls_cert", ""),
    ("tls-key", "tls_key", ""),
    ("tls-client-auth-policy", "tls_client_auth_policy", ""),
    ("tls-root-ca-file", "tls_root_ca_file", ""),
    ("tls-required", "tls_required", 0),
    ("tls-min-version", "tls_min_version", 771),
    ("deflate", "deflate", True),
    ("max-deflate-level", "max_deflate_level", 6),
    ("snappy", "snappy", True),
    ("enable-experiment", "enable_experiment", []),
]
COMMAND_LINE_ONLY = {"version", "config", "verbose", "worker-id"}
OUR_OWN = {
    "max-defer-timeout",
    "log-format",
    "spin-poll",
    "disk-checksums",
    "min-free-disk",
    "max-connections",
    "handshake-timeout",
    "max-depth",
    "max-depth-bytes",
    "max-depth-policy",
    "msg-ttl",
    "max-attempts",
    "dead-letter-topic-suffix",
    "metrics-max-queues",
    "retain-bytes",
    "retain-time",
    "drain-timeout",
    "analytics",
    "snapshot-max-lease",
    "snapshot-max-leases",
    "snapshot-max-bytes",
    "console",
    "http-cors-origin",
    "http-allowed-host",
    "http-auth-token-file",
    "lookupd-auth-token-file",
}


def from_toml(tmp_path: Path, toml: str, *argv: str) -> Options:
    path = tmp_path / "nsqd.cfg"
    path.write_text(toml)
    return COMMAND.read([f"--config={path}", *argv])


class TestDeclarations:
    @pytest.mark.parametrize(("name", "toml_key", "default"), REFERENCE)
    def test_flag_key_and_default_are_those_of_nsqd(
        self, name: str, toml_key: str, default: object
    ) -> None:
        by_name = {declared.name: declared for declared in declared_flags(Options).values()}

        assert by_name[name].toml_key == toml_key
        shown = config_value(Options(), toml_key)
        assert shown == default
        assert type(shown) is type(default)

    def test_no_flag_is_missing_and_none_is_unheard_of(self) -> None:
        names = {declared.name for declared in declared_flags(Options).values()}

        assert names == {name for name, _, _ in REFERENCE} | COMMAND_LINE_ONLY | OUR_OWN

    def test_every_field_is_a_flag_named_like_it(self) -> None:
        declared = declared_flags(Options)

        groups = {"limits": [field.name for field in dataclasses.fields(Limits)]}
        fields = [groups.get(each.name, [each.name]) for each in dataclasses.fields(Options)]
        assert list(declared) == list(chain.from_iterable(fields))
        for field, item in declared.items():
            assert field.startswith(item.name.replace("-", "_"))
            # The unit comes last, and lists are plural.
            suffix = field.removeprefix(item.name.replace("-", "_"))
            assert suffix in {"", "_s", "s", "es"}
            assert (suffix == "_s") == (item.kind.noun == "duration")

    def test_options_are_immutable(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Options().mem_queue_size = 1  # type: ignore[misc]

    def test_extensions_refuse_nobody_unless_asked_for(self) -> None:
        options = Options()

        assert options.spin_poll_s == 50e-6
        assert options.max_connections == 0
        assert options.handshake_timeout_s == 10.0

    @pytest.mark.parametrize(("hostname", "node_id"), [("vm", 617), ("localhost", 16)])
    def test_default_node_id_is_that_of_nsqd(self, hostname: str, node_id: int) -> None:  # O-18
        assert default_node_id(hostname) == node_id

    def test_defaults_follow_the_hostname(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "localhost")

        assert Options().node_id == 16


class TestCommandLine:
    def test_deprecated_flags_have_no_effect(self) -> None:  # O-20
        options = COMMAND.read(["-verbose", "--worker-id", "5", "--node-id=7"])

        assert options == Options(verbose=True, worker_id=True)  # "5" ended the flags

    @pytest.mark.parametrize(
        ("text", "level"),
        [
            ("debug", LogLevel.DEBUG),
            ("INFO", LogLevel.INFO),
            ("Warn", LogLevel.WARN),
            ("error", LogLevel.ERROR),
            ("fatal", LogLevel.FATAL),
        ],
    )
    def test_log_level(self, text: str, level: LogLevel) -> None:
        assert COMMAND.read([f"--log-level={text}"]).log_level is level

    @pytest.mark.parametrize(
        ("argument", "required"),
        [
            ("--tls-required", TLSRequired.EVERYWHERE),
            ("--tls-required=true", TLSRequired.EVERYWHERE),
            ("--tls-required=TRUE", TLSRequired.EVERYWHERE),
            ("--tls-required=1", TLSRequired.EVERYWHERE),
            ("--tls-required=false", TLSRequired.NO),
            ("--tls-required=tcp-https", TLSRequired.TCP_ONLY),
            ("--tls-required=TCP-HTTPS", TLSRequired.TCP_ONLY),
        ],
    )
    def test_tls_required(self, argument: str, required: TLSRequired) -> None:
        assert COMMAND.read([argument]).tls_required is required

    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("", 771),
            ("tls1.0", 769),
            ("TLS1.1", 770),
            ("tls1.2", 771),
            ("tls1.3", 772),
        ],
    )
    def test_tls_min_version(self, text: str, version: int) -> None:
        options = COMMAND.read([f"--tls-min-version={text}"])

        assert isinstance(options.tls_min_version, ssl.TLSVersion)
        assert config_value(options, "tls_min_version") == version

    @pytest.mark.parametrize(
        ("argument", "message"),
        [
            (
                "--log-level=loud",
                'invalid value "loud" for flag -log-level: '
                "invalid log level 'loud' (debug, info, warn, error, fatal)",
            ),
            (
                "--tls-required=maybe",
                'invalid boolean value "maybe" for -tls-required: must be true, false or tcp-https',
            ),
            (
                "--tls-min-version=ssl3.0",
                'invalid value "ssl3.0" for flag -tls-min-version: '
                'unknown TLS version "ssl3.0" (tls1.0, tls1.1, tls1.2, tls1.3)',
            ),
            (
                "--e2e-processing-latency-percentile=p99",
                'invalid value "p99" for flag -e2e-processing-latency-percentile: parse error',
            ),
        ],
    )
    def test_bad_special_values(self, argument: str, message: str) -> None:  # O-3
        with pytest.raises(CommandLineExit) as caught:
            COMMAND.read([argument])

        assert caught.value.status == 2
        assert caught.value.text.splitlines()[0] == message

    @pytest.mark.parametrize("policy", ["require", "require-verify"])
    def test_client_certificates_turn_tls_on_everywhere(self, policy: str) -> None:  # O-15
        options = COMMAND.read([f"--tls-client-auth-policy={policy}"])

        assert options.tls_required is TLSRequired.EVERYWHERE
        assert config_value(options, "tls_required") == 2

    def test_client_certificates_leave_tcp_https_alone(self) -> None:
        argv = ["--tls-client-auth-policy=require", "--tls-required=tcp-https"]

        assert COMMAND.read(argv).tls_required is TLSRequired.TCP_ONLY

    def test_defer_limit_is_max_req_timeout_unless_given(self) -> None:
        assert COMMAND.read(["--max-req-timeout=2h"]).defer_limit_s == 7200.0
        assert COMMAND.read(["--max-defer-timeout=3h"]).defer_limit_s == 10800.0

    def test_experiments(self) -> None:
        options = COMMAND.read(
            ["--enable-experiment=topology-aware-consumption", "--enable-experiment=unknown"]
        )

        assert options.has_experiment("topology-aware-consumption")
        assert not options.has_experiment("other")

    def test_help_has_every_flag_and_fits_a_terminal(self) -> None:
        with pytest.raises(CommandLineExit) as caught:
            COMMAND.read(["--help"])

        lines = caught.value.text.splitlines()
        shown = {match[1] for line in lines if (match := re.match(r"  --([a-z0-9-]+)", line))}
        assert shown == {declared.name for declared in declared_flags(Options).values()}
        assert max(map(len, lines)) <= 80


class TestConfigFile:
    def test_config_with_the_keys_of_nsqs_example_loads(self, tmp_path: Path) -> None:  # O-8
        options = from_toml(
            tmp_path,
            """
            log_level = "info"
            tcp_address = "0.0.0.0:4150"
            http_address = "0.0.0.0:4151"
            nsqlookupd_tcp_addresses = [
                "127.0.0.1:4160"
            ]
            http_client_connect_timeout = "2s"
            http_client_request_timeout = "5s"
            mem_queue_size = 10000
            max_bytes_per_file = 104857600
            sync_every = 2500
            sync_timeout = "2s"
            msg_timeout = "60s"
            max_msg_timeout = "15m"
            max_msg_size = 1024768
            max_req_timeout = "1h"
            max_body_size = 5123840
            max_heartbeat_interval = "60s"
            max_rdy_count = 2500
            max_output_buffer_size = 65536
            max_output_buffer_timeout = "1s"
            statsd_prefix = "nsq.%s"
            statsd_interval = "60s"
            statsd_mem_stats = true
            e2e_processing_latency_percentiles = [
                1.0,
                0.99,
                0.95
            ]
            e2e_processing_latency_window_time = "10m"
            tls_cert = ""
            tls_key = ""
            tls_required = false
            tls_min_version = ""
            deflate = true
            max_deflate_level = 6
            snappy = true
            """,
        )

        check_options(options)
        assert options == Options(
            config=options.config,
            lookupd_tcp_addresses=("127.0.0.1:4160",),
            max_msg_size=1024768,
            max_body_size=5123840,
            max_output_buffer_timeout_s=1.0,
            e2e_processing_latency_percentiles=(1.0, 0.99, 0.95),
        )

    def test_keys_that_the_example_leaves_out_load_too(self, tmp_path: Path) -> None:  # O-5
        options = from_toml(
            tmp_path,
            """
            id = 517
            https_address = "0.0.0.0:4152"
            broadcast_address = "node"
            data_path = "/var/lib/nsq"
            statsd_address = "127.0.0.1:8125"
            statsd_udp_packet_size = 508
            tls_client_auth_policy = "require-verify"
            tls_root_ca_file = "ca.pem"
            auth_http_addresses = "127.0.0.1:4181,127.0.0.1:4182"
            enable_experiment = ["topology-aware-consumption"]
            """,
        )

        assert options.node_id == 517
        assert options.broadcast_address == "node"
        assert options.tls_required is TLSRequired.EVERYWHERE
        assert options.auth_http_addresses == ("127.0.0.1:4181", "127.0.0.1:4182")
        assert options.has_experiment("topology-aware-consumption")

    @pytest.mark.parametrize(
        ("toml", "field", "value"),
        [
            ('log_level = "DEBUG"', "log_level", LogLevel.DEBUG),
            ("tls_required = true", "tls_required", TLSRequired.EVERYWHERE),
            ('tls_required = "tcp-https"', "tls_required", TLSRequired.TCP_ONLY),
            ('tls_required = "false"', "tls_required", TLSRequired.NO),
            ('tls_min_version = "tls1.2"', "tls_min_version", ssl.TLSVersion.TLSv1_2),
            ("e2e_processing_latency_percentiles = [0.5, 1]", "e2e_processing_latency_percentiles",
             (0.5, 1.0)),
            ("deflate = 1", "deflate", True),
        ],
    )  # fmt: skip
    def test_special_values(self, tmp_path: Path, toml: str, field: str, value: object) -> None:
        assert getattr(from_toml(tmp_path, toml), field) == value

    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            ('log_level = "loud"', "failed parsing log_level loud"),
            ("log_level = 2", "failed parsing log_level 2"),
            ('tls_required = "maybe"', "failed parsing tls_required maybe"),
            ('tls_min_version = "tls9"', "failed parsing tls_min_version tls9"),
        ],
    )
    def test_bad_special_values(self, tmp_path: Path, toml: str, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            from_toml(tmp_path, toml)

        assert str(caught.value) == message
        assert caught.value.level == "FATAL"

    def test_flag_beats_config(self, tmp_path: Path) -> None:  # O-6
        toml = "id = 1\nmax_rdy_count = 88\n"

        options = from_toml(tmp_path, toml, "--max-rdy-count=99")

        assert (options.node_id, options.max_rdy_count) == (1, 99)


class TestConfigValue:
    @pytest.mark.parametrize("key", ["config", "version", "verbose", "worker_id", "node_id", ""])
    def test_what_is_not_in_the_config_file_is_not_shown(self, key: str) -> None:
        with pytest.raises(KeyError):
            config_value(Options(), key)

    @pytest.mark.parametrize(
        ("argument", "key", "value"),
        [
            ("--msg-timeout=1m30s", "msg_timeout", 90 * 10**9),
            ("--statsd-interval=250us", "statsd_interval", 250_000),
            ("--max-req-timeout=1.5h", "max_req_timeout", 5400 * 10**9),
            ("--sync-timeout=1ns", "sync_timeout", 1),
            ("--lookupd-tcp-address=a:1", "nsqlookupd_tcp_addresses", ["a:1"]),
            ("--log-level=fatal", "log_level", 5),
            ("--tls-required=tcp-https", "tls_required", 1),
        ],
    )
    def test_given_values(self, argument: str, key: str, value: object) -> None:
        assert config_value(COMMAND.read([argument]), key) == value


class TestChecks:
    def test_defaults_pass(self) -> None:
        check_options(Options())

    @pytest.mark.parametrize(
        "options",
        [
            Options(max_deflate_level=1),
            Options(max_deflate_level=9),
            Options(node_id=0),
            Options(node_id=1023),
            Options(mem_queue_size=0),
            Options(max_req_timeout_s=0.0),
            Options(min_output_buffer_timeout_s=0.0),
            Options(http_address=""),
            Options(statsd_interval_s=0.00025),
            Options(tls_client_auth_policy="require", tls_cert="c", tls_key="k"),
            Options(auth_http_request_method="post"),
            Options(e2e_processing_latency_percentiles=(1.0, 0.0001)),
        ],
    )
    def test_values_at_the_edge_pass(self, options: Options) -> None:
        check_options(options)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (Options(max_deflate_level=0), "--max-deflate-level must be [1,9]"),
            (Options(max_deflate_level=10), "--max-deflate-level must be [1,9]"),
            (Options(node_id=-1), "--node-id must be [0,1024)"),
            (Options(node_id=1024), "--node-id must be [0,1024)"),
            (
                Options(tls_client_auth_policy="verify"),
                "--tls-client-auth-policy must be require or require-verify",
            ),
            (Options(tcp_address=""), "--tcp-address must not be empty"),
            (Options(sync_timeout_s=0.0), "--sync-timeout must be at least 1µs"),
            (Options(sync_every=-1), "--sync-every must be at least 0"),
            (Options(output_buffer_timeout_s=0.0), "--output-buffer-timeout must be at least 1µs"),
            (Options(statsd_interval_s=-1.0), "--statsd-interval must be at least 1µs"),
            (Options(statsd_udp_packet_size=0), "--statsd-udp-packet-size must be at least 1"),
            (Options(mem_queue_size=-1), "--mem-queue-size must be at least 0"),
            (Options(max_bytes_per_file=0), "--max-bytes-per-file must be at least 1"),
            (Options(msg_timeout_s=0.0), "--msg-timeout must be at least 1µs"),
            (Options(max_msg_size=0), "--max-msg-size must be at least 1"),
            (Options(max_req_timeout_s=-1.0), "--max-req-timeout must be at least 0s"),
            (Options(broadcast_tcp_port=65536), "--broadcast-tcp-port must be at most 65535"),
            (Options(handshake_timeout_s=0.0), "--handshake-timeout must be at least 1µs"),
        ],
    )
    def test_limits(self, options: Options, text: str) -> None:  # O-13
        with pytest.raises(OptionsError) as caught:
            check_values(options)

        assert str(caught.value) == text

    @pytest.mark.parametrize(
        "options",
        [
            Options(tls_required=TLSRequired.EVERYWHERE),
            Options(tls_required=TLSRequired.TCP_ONLY),
            Options(tls_client_auth_policy="require"),
        ],
    )
    def test_tls_cannot_be_required_without_certificate(self, options: Options) -> None:  # O-14
        with pytest.raises(OptionsError) as caught:
            check_tls(options)

        assert str(caught.value) == (
            "cannot require TLS client connections without TLS key and cert"
        )

    def test_half_a_certificate_is_left_to_the_reading_of_the_files(self) -> None:
        check_tls(Options(tls_required=TLSRequired.EVERYWHERE, tls_cert="c"))

    @pytest.mark.parametrize("method", ["put", "GET", ""])
    def test_request_method(self, method: str) -> None:  # O-13
        with pytest.raises(OptionsError) as caught:
            check_services(Options(auth_http_request_method=method))

        assert str(caught.value) == "--auth-http-request-method must be post or get"

    @pytest.mark.parametrize(
        ("percentile", "shown"),
        [
            (1.5, "1.5"),
            (0.0, "0"),
            (99.0, "99"),
            (-0.5, "-0.5"),
            (1.0000000001, "1.0000000001"),
            (float("nan"), "nan"),
        ],
    )
    def test_percentile(self, percentile: float, shown: str) -> None:  # O-13
        with pytest.raises(OptionsError) as caught:
            check_services(Options(e2e_processing_latency_percentiles=(1.0, percentile)))

        assert str(caught.value) == f"invalid E2E processing latency percentile: {shown}"

    def test_order_is_that_of_nsqd(self) -> None:
        wrong = Options(
            max_deflate_level=0,
            node_id=-1,
            tls_required=TLSRequired.EVERYWHERE,
            auth_http_request_method="put",
            e2e_processing_latency_percentiles=(2.0,),
        )
        repairs: list[dict[str, object]] = [
            {"max_deflate_level": 6},
            {"node_id": 1},
            {"tls_required": TLSRequired.NO},
            {"auth_http_request_method": "get"},
            {"e2e_processing_latency_percentiles": ()},
        ]
        seen = []

        for repair in repairs:
            with pytest.raises(OptionsError) as caught:
                check_options(wrong)
            seen.append(str(caught.value).split()[0])
            wrong = dataclasses.replace(wrong, **repair)  # type: ignore[arg-type]

        check_options(wrong)
        assert seen == [
            "--max-deflate-level",
            "--node-id",
            "cannot",
            "--auth-http-request-method",
            "invalid",
        ]


class TestTable:
    def test_table_has_every_flag_once_and_nothing_of_this_machine(self) -> None:
        table = markdown_table()

        rows = re.findall(r"^\| `--([a-z0-9-]+)` \|", table, re.MULTILINE)
        assert rows == [declared.name for declared in declared_flags(Options).values()]
        assert "| `--node-id` | from the hostname |" in table
        assert "| `--broadcast-address` | the hostname |" in table
        assert "**Extensions (not in NSQ)**" in table

    def test_rows_have_three_cells(self) -> None:
        rows = [line for line in markdown_table().splitlines() if line.startswith("|")]

        assert {line.count("|") for line in rows} == {4}

    def test_module_prints_the_table(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "nsqd.config.options"],
            capture_output=True,
            cwd=Path(__file__).parents[4],
            timeout=30,
            check=True,
        )

        assert done.stdout.decode() == markdown_table()
