"""Messages as bytes for stdout."""

import argparse
import json

import pytest

from nsqd.cli import arguments, formats
from nsqd.cli.messages.pieces import open_envelope
from nsqd.cli.output import CliError
from tests.support.client_messages import make_message


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments.add_messages(parser)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def show(body: bytes, *argv: str, is_terminal: bool = False) -> bytes:
    chosen = formats.make_format(options(*argv), is_terminal=is_terminal)
    return chosen(make_message(1, body=body))


def test_a_line_is_the_body_as_it_is() -> None:
    assert show(b"a\x1b[31m\xff") == b"a\x1b[31m\xff\n"
    assert show(b"a", "-0") == b"a\0"
    assert show(b"\x00\xff", "--hex") == b"00ff\n"
    assert show(b"abc", "--framed") == b"\0\0\0\x03abc"
    assert show(b"abc", "--print-topic") == b"topic | abc\n"


@pytest.mark.parametrize("argv", [(), ("--format", "%s\\n"), ("--pretty",)])
@pytest.mark.parametrize(
    "body", [b"\x1b]0;owned\x07", b'{"a": "\\u001b[2J\xc2\x9b31m"}', "\u202egnp".encode()]
)
def test_a_message_cannot_drive_a_terminal(body: bytes, argv: tuple[str, ...]) -> None:
    shown = show(body, *argv, is_terminal=True).decode()

    assert not any(sign in shown for sign in ("\x1b", "\x07", "\x9b", "\u202e"))


def test_json_brings_every_byte_back() -> None:
    for body in (b"plain", b"two\nlines", b"\xff\x00", "ä\u2028".encode()):
        line = show(body, "--json")
        assert line.count(b"\n") == 1
        assert open_envelope(line) == body
    fields = json.loads(show(b"x", "--json"))
    assert set(fields) == {"topic", "channel", "nsqd", "id", "timestamp_ns", "attempts", "body"}


def test_a_format_of_the_user() -> None:
    shown = show(b"body", "--format", r"%t/%c %i %a %S [%s] %% %x\n")

    assert shown == b"topic/channel 0000000000000001 1 4 [body] % %x\n"


@pytest.mark.parametrize(
    ("where", "is_wanted"),
    [
        ("a=1", True),
        ("a=2", False),
        ("a!=2", True),
        ("a>0.5", True),
        ("a<0.5", False),
        ("b.c=text", True),
        ("b.c~^te", True),
        ("b.d.0=9", True),
        ("b.d.5=9", False),
        ("none=1", False),
        ("none!=1", True),
        ("yes=true", True),
    ],
)
def test_conditions(where: str, is_wanted: bool) -> None:  # noqa: FBT001 - drawn
    body = b'{"a": 1, "b": {"c": "text", "d": [9]}, "yes": true}'
    chosen = formats.make_filter(options("--where", where))

    assert chosen is not None
    assert chosen(make_message(1, body=body)) is is_wanted


def test_a_pattern_and_what_is_no_condition() -> None:
    chosen = formats.make_filter(options("--grep", "^a.c"))

    assert chosen is not None
    assert chosen(make_message(1, body=b"abc"))
    assert not chosen(make_message(1, body=b"xabc"))
    assert formats.make_filter(options()) is None
    for argv in (("--grep", "("), ("--where", "x")):
        with pytest.raises(CliError):
            formats.make_filter(options(*argv))
