"""Messages as bytes for stdout: lines, JSON, a format of the user, hex, frames."""

from __future__ import annotations

import argparse
import base64
import json
import re
import struct
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from diskqueue.tools.plain_text import escape_bytes, escape_text
from nsqd.cli.output import CliError, ExitCode
from nsqd.client import Message

_SIZE: Final = struct.Struct(">i")
_CODES: Final = re.compile(r"%(.)", re.DOTALL)
_CONDITION: Final = re.compile(r"([\w.-]+)\s*(!=|=|<|>|~)\s*(.*)", re.DOTALL)

Format = Callable[[Message], bytes]
Filter = Callable[[Message], bool]


def has_format(options: argparse.Namespace) -> bool:
    """Say whether a format was chosen."""
    return bool(
        options.format is not None
        or options.pretty
        or options.time
        or options.print_topic
        or options.is_null
        or options.hex
        or options.framed
    )


def make_format(options: argparse.Namespace, *, is_terminal: bool | None = None) -> Format:
    """Return the function that turns a message into bytes."""
    is_terminal = sys.stdout.isatty() if is_terminal is None else is_terminal
    if options.framed:
        return lambda message: _SIZE.pack(len(message.body)) + message.body
    if options.json:
        return lambda message: to_json(message) + b"\n"
    if options.format is not None:
        return _make_custom(options.format, is_terminal=is_terminal)
    end = b"\0" if options.is_null else b"\n"
    show = _choose_body(options, is_terminal=is_terminal)
    if not options.time and not options.print_topic:
        return lambda message: show(message.body) + end

    def with_prefix(message: Message) -> bytes:
        time = f"{_show_time(message.timestamp_ns)} " if options.time else ""
        topic = f"{message.topic} | " if options.print_topic else ""
        return f"{time}{topic}".encode() + show(message.body) + end

    return with_prefix


def _choose_body(options: argparse.Namespace, *, is_terminal: bool) -> Callable[[bytes], bytes]:
    if options.hex:
        return lambda body: body.hex().encode()
    if options.pretty:
        return lambda body: _prettify(body, is_terminal=is_terminal)
    if is_terminal:
        return lambda body: escape_bytes(body).encode()
    return lambda body: body


def to_json(message: Message) -> bytes:
    """Return a message as one JSON object; a body that is no UTF-8 is in base64."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "channel": message.channel,
        "nsqd": message.nsqd,
        "id": message.id.decode("ascii", "replace"),
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def make_filter(options: argparse.Namespace) -> Filter | None:
    """Return the function that says whether to show a message; None for all of them.

    Raises:
        CliError: an expression is wrong.
    """
    tests: list[Filter] = []
    if options.grep is not None:
        try:
            pattern = re.compile(options.grep.encode())
        except re.error as error:
            raise CliError(f"--grep: {error}", ExitCode.USAGE) from error
        tests.append(lambda message: pattern.search(message.body) is not None)
    tests += map(_make_condition, options.where)
    return (lambda message: all(test(message) for test in tests)) if tests else None


def _make_condition(text: str) -> Filter:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise CliError(f"--where: not FIELD=VALUE: {text!r}", ExitCode.USAGE)
    path, operator, wanted = match[1].split("."), match[2], match[3]

    def test(message: Message) -> bool:
        try:
            value = json.loads(message.body)
            for name in path:
                value = value[int(name)] if isinstance(value, list) else value[name]
        except (ValueError, KeyError, IndexError, TypeError):
            return operator == "!="
        return _compare(value, operator, wanted)

    return test


def _compare(value: object, operator: str, wanted: str) -> bool:
    text = value if isinstance(value, str) else json.dumps(value)
    if operator == "~":
        return re.search(wanted, text) is not None
    if operator in "<>":
        try:
            left, right = float(text), float(wanted)
        except ValueError:
            return text < wanted if operator == "<" else text > wanted
        return left < right if operator == "<" else left > right
    return (text == wanted) == (operator == "=")


def _make_custom(template: str, *, is_terminal: bool) -> Format:
    template = template.replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "\0")

    def show(message: Message) -> bytes:
        body = message.body if not is_terminal else escape_bytes(message.body).encode()
        values: dict[str, bytes] = {
            "t": message.topic.encode(),
            "c": message.channel.encode(),
            "i": message.id,
            "a": b"%d" % message.attempts,
            "T": _show_time(message.timestamp_ns).encode(),
            "n": message.nsqd.encode(),
            "S": b"%d" % len(message.body),
            "s": body,
            "%": b"%",
        }
        parts = []
        position = 0
        for code in _CODES.finditer(template):
            parts.append(template[position : code.start()].encode())
            parts.append(values.get(code[1], code[0].encode()))
            position = code.end()
        parts.append(template[position:].encode())
        return b"".join(parts)

    return show


def _prettify(body: bytes, *, is_terminal: bool) -> bytes:
    try:
        value = json.loads(body)
    except ValueError:
        return escape_bytes(body).encode() if is_terminal else body
    # Control characters within strings are escaped by JSON itself, C1 ones are not.
    lines = json.dumps(value, ensure_ascii=False, indent=2).splitlines()
    return "\n".join(map(escape_text, lines)).encode() if is_terminal else "\n".join(lines).encode()


def _show_time(timestamp_ns: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ns / 1e9).astimezone()
    return moment.isoformat(timespec="milliseconds")
