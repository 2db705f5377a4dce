"""go-nsq's options, and flags in Go's syntax."""

from collections.abc import Callable, Sequence

import pytest

from nsqd.cli.go import stat, tail, to_nsq
from nsqd.cli.go.options import UsageError, read_go_nsq
from nsqd.client.settings import Settings, Tls

Main = Callable[[Sequence[str] | None], int]
KEYS = (
    "dial_timeout read_timeout write_timeout local_addr lookupd_poll_interval lookupd_poll_jitter "
    "lookupd_poll_timeout max_requeue_delay default_requeue_delay backoff_strategy "
    "max_backoff_duration backoff_multiplier max_attempts low_rdy_idle_timeout low_rdy_timeout "
    "rdy_redistribute_interval client_id hostname user_agent topology_region topology_zone "
    "heartbeat_interval sample_rate tls_v1 tls_root_ca_file tls_insecure_skip_verify tls_cert "
    "tls_key tls_min_version deflate deflate_level snappy output_buffer_size "
    "output_buffer_timeout max_in_flight msg_timeout max_msg_size auth_secret "
    "skip_lookupd_authorization"
)
VALUES = {
    "backoff_strategy": "full_jitter",
    "tls_min_version": "tls1.2",
    "tls_v1": "false",
    "deflate": "false",
    "snappy": "1",
    "dial_timeout": "1s",
    "read_timeout": "1s",
    "write_timeout": "1s",
    "local_addr": "127.0.0.1:0",
    "lookupd_poll_interval": "1s",
    "lookupd_poll_timeout": "1s",
    "max_requeue_delay": "1s",
    "default_requeue_delay": "1s",
    "max_backoff_duration": "1s",
    "backoff_multiplier": "1s",
    "low_rdy_idle_timeout": "1s",
    "low_rdy_timeout": "1s",
    "rdy_redistribute_interval": "1s",
    "heartbeat_interval": "1s",
    "output_buffer_timeout": "1s",
    "msg_timeout": "1s",
}


def test_every_key_of_go_nsq_is_taken() -> None:
    for key in KEYS.split():
        read_go_nsq([f"{key},{VALUES.get(key, '1')}"], "consumer-opt")


def test_values_arrive_at_the_client() -> None:
    given = ["snappy", "msg-timeout,90s", "heartbeat_interval,1500ms", "tls_v1", "max_attempts,3"]
    config = read_go_nsq([*given, "tls-insecure-skip-verify"], "consumer-opt")

    settings = Settings(**config.connection_options())
    assert (settings.compression, settings.msg_timeout) == ("snappy", 90.0)
    assert settings.heartbeat_interval == 1.5
    assert settings.tls == Tls(verifies=False)
    assert config.consumer == {"max_attempts": 3}
    bound = read_go_nsq(["local_addr,127.0.0.2:0"], "consumer-opt")
    assert bound.connection_options() == {"local_address": ("127.0.0.2", 0)}
    asked = read_go_nsq(["skip_lookupd_authorization,false"], "consumer-opt")
    assert asked.consumer == {"lookupd_authorization": True}


@pytest.mark.parametrize(
    "text",
    [
        "nonsense,1",
        "sample_rate,x",
        "sample_rate,100",
        "tls_min_version,tls9",
        "msg_timeout,60",  # without a unit, which would be a guess
        "read_timeout,x",
        "lookupd_poll_jitter,2",
        "low_rdy_timeout,100ms",
        "deflate_level,10",
        "max_msg_size,-1",
        "local_addr,host",
    ],
)
def test_a_wrong_key_or_value_is_exit_2(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_go_nsq([text], "consumer-opt")

    assert caught.value.code == 2


NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
HTTP = "--nsqd-http-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("main", "argv", "code"),
    [
        (tail.main, ["--version"], 0),
        (tail.main, ["-h"], 0),
        (tail.main, ["--unknown"], 2),
        (tail.main, ["-n", "x"], 2),
        (tail.main, ["--topic=t"], 1),
        (tail.main, [NSQD], 1),
        (tail.main, ["--topic=t", NSQD, LOOKUPD], 1),
        (tail.main, ["--topic=t", NSQD, "--consumer-opt=nonsense"], 2),
        (tail.main, ["--topic=no topic", NSQD], 1),
        (stat.main, ["-version"], 0),
        (stat.main, ["--topic=t", HTTP], 1),
        (stat.main, ["--topic=t", "--channel=c"], 1),
        (stat.main, ["--topic=t", "--channel=c", HTTP, LOOKUPD], 1),
        (stat.main, ["--topic=t", "--channel=c", HTTP, "--count=0"], 1),
        (stat.main, ["--topic=t", "--channel=c", HTTP, "--interval=0s"], 1),
        (stat.main, ["--topic=t", "--channel=c", "--nsqd-http-address=http://x"], 1),
        (to_nsq.main, ["--version"], 0),
        (to_nsq.main, [NSQD], 1),
        (to_nsq.main, ["--topic=t"], 1),
        (to_nsq.main, ["--topic=t", NSQD, "--delimiter=ab"], 1),
        (to_nsq.main, ["--topic=t", NSQD, "--rate=x"], 2),
    ],
)
def test_exit_codes_of_wrong_command_lines(main: Main, argv: list[str], code: int) -> None:
    assert main(argv) == code


def test_versions_are_those_of_go(capsys: pytest.CaptureFixture[str]) -> None:
    tail.main(["--version"])
    stat.main(["--version"])

    assert capsys.readouterr().out == "nsq_tail v1.3.0\nnsq_stat v1.3.0\n"
