"""What looks like a secret is in no log line, and what strangers send controls no terminal."""

import logging

import pytest

from nsqd.config.logs import LineFormatter, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass@host:80/auth", "http://***@host:80/auth"),
        ("https://user@host/", "https://***@host/"),
        ("http://user:p@ss:w@host/", "http://***@host/"),
        ("user:pass@host:4180", "***@host:4180"),
        ("--auth-http-address=user:pass@host", "--auth-http-address=***@host"),
        ("against ['user:pass@host']", "against ['***@host']"),
        ("/pub?topic=t&access_token=abc&x=1", "/pub?topic=t&access_token=***&x=1"),
        ("/auth?SECRET=abc def", "/auth?SECRET=*** def"),
        ("/x?api_key=abc#f", "/x?api_key=***#f"),
        ("http://u:p@h/?password=q", "http://***@h/?password=***"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "client(127.0.0.1:4242) - exiting",
        "client(@) - exiting",
        "200 GET /stats?format=json&topic=tokens (127.0.0.1:5) 1ms",
        "LOOKUPD(127.0.0.1:4160): peer info tcp_port=4160 version=1.3.0",
        "token file changed, the new token holds",
        "mail me@example.org at 10:30",
    ],
)
def test_the_rest_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    ["a:" * 100_000, "=a:b" * 50_000, "?" * 200_000, "?" + "token" * 40_000],
    ids=["colons", "pairs", "questions", "tokens"],
)
def test_the_work_grows_with_the_length_of_a_text_alone(text: str) -> None:
    """With its square, these would not end before the test's timeout."""
    for end in ("=", " =", " @x"):
        redact(text + end)


def test_strangers_control_no_terminal_and_begin_no_line() -> None:
    word = "x\x1b[2J\r\x0b\x85\u2028\u202e\tü"
    record = logging.makeLogRecord({"msg": "invalid command %s", "args": (word,), "levelno": 30})

    [line] = LineFormatter("[nsqd] ").format(record).splitlines()

    assert line.endswith(r"invalid command x\x1b[2J\x0d\x0b\x85\u2028\u202e" + "\tü")
