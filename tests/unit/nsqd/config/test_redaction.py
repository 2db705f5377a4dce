"""What looks like a secret is in no log line, and what strangers send controls no terminal."""

import logging

import pytest

from nsqd.config.logs import LineFormatter
from nsqd.config.redaction import MAX_LINE_CHARACTERS, redact, redact_argument, shorten_line


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
        ("http://u:p@h/?password=q", "http://***@h/?***"),
        ("http://h/auth?a=b&c=d#e 'https://i/?x' ok", "http://h/auth?*** 'https://i/?***' ok"),
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
    [
        *("a:" * 100_000, "=a:b" * 50_000, "?" * 200_000, "?" + "token" * 40_000),
        *("a,[" * 60_000, "://" * 60_000, "?token" * 30_000, "a:b@" * 50_000, "x" * 200_000),
    ],
    ids=[
        *("colons", "pairs", "questions", "tokens"),
        *("brackets", "schemes", "names", "users", "word"),
    ],
)
def test_the_work_grows_with_the_length_of_a_text_alone(text: str) -> None:
    """With its square, these would not end before the test's timeout."""
    for end in ("=", " =", " @x", "@x?="):
        redact(text + end)
        redact_argument(text + end)
        shorten_line(text + end)


def test_strangers_control_no_terminal_and_begin_no_line() -> None:
    word = "x\x1b[2J\r\x0b\x85\u2028\u202e\tü"
    record = logging.makeLogRecord({"msg": "invalid command %s", "args": (word,), "levelno": 30})

    [line] = LineFormatter("[nsqd] ").format(record).splitlines()

    assert line.endswith(r"invalid command x\x1b[2J\r\x0b\x85\u2028\u202e\tü")


def test_a_long_line_is_cut_before_it_is_searched() -> None:
    record = logging.makeLogRecord({"msg": "x" * 5000 + "\n" + "y" * 10, "levelno": 30})

    first, second = LineFormatter("").format(record).split("\n")

    assert first.endswith("x... (904 more characters)")
    assert second.endswith("y" * 10)


@pytest.mark.parametrize("secret", ["http://user:pass", "user:password", "=user:pass", "(u:p"])
@pytest.mark.parametrize("cut", range(1, 18))
def test_no_part_of_a_secret_is_left_at_the_cut(secret: str, cut: int) -> None:
    """The @ that would tell it from other text is behind the cut."""
    line = f"{'x ' * MAX_LINE_CHARACTERS}"[: MAX_LINE_CHARACTERS - cut] + f" {secret}@host/ and on"

    shown = redact(shorten_line(line))

    kept = shown.partition("... (")[0].rstrip("x ")
    end = kept[-40:].replace("http:", "").replace("http", "")
    assert "p" not in end
    assert ":" not in end


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "--auth-http-address=http://u:p@h/auth?key=abc",
            "--auth-http-address=http://***@h/auth?***",
        ),
        ("h:4180/auth?key=abc", "h:4180/auth?***"),
        ("--data-path=/var/lib", "--data-path=/var/lib"),
    ],
)
def test_an_argument_shows_no_query(text: str, shown: str) -> None:
    assert redact_argument(text) == shown
