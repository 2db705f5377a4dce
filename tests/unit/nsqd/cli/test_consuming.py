"""Settings of consumers from flags."""

import argparse
from typing import Any

import pytest

from nsqd.cli import arguments
from nsqd.cli.consuming import consumer_options
from nsqd.cli.output import CliError
from nsqd.cli.target import Target
from nsqd.client import BackoffPolicy


def find(*argv: str, **defaults: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    arguments.add_consumer(parser)
    return consumer_options(parser.parse_args(argv), Target(), **defaults)


def test_without_flags_the_defaults_hold() -> None:
    assert find(backoff=None) == {"tls": None, "auth_secret": None, "backoff": None}


def test_flags() -> None:
    found = find("--msg-timeout", "5s", "--max-attempts", "3", "--dead-letter", "d", "--snappy")

    assert found["msg_timeout"] == 5.0
    assert (found["max_attempts"], found["dead_letter_topic"]) == (3, "d")
    assert found["compression"] == "snappy"


def test_options_of_go_nsq_win() -> None:
    found = find(
        "--opt", "user_agent=mine", "--opt", "default-requeue-delay=2s",
        "--opt", "max_requeue_delay=1m", "--opt", "max_backoff_duration=10s",
        "--opt", "backoff_strategy=full_jitter",
        user_agent="ours", backoff=None,
    )  # fmt: skip

    assert found["user_agent"] == "mine"
    assert (found["requeue_delay"], found["max_requeue_delay"]) == (2.0, 60.0)
    assert found["backoff"] == BackoffPolicy(max_pause=10.0, jitter="full")
    assert find("--opt", "max_backoff_duration=0")["backoff"] is None
    assert callable(find("--opt", "max_attempts=3")["on_give_up"])


def test_what_is_refused() -> None:
    for argv in (("--opt", "nothing=1"), ("--opt", "backoff_strategy=x"), ("--max-attempts", "3")):
        with pytest.raises(CliError):
            find(*argv)
