"""Flags that several commands share, and the kinds of their values."""

from __future__ import annotations

import argparse
import re
from typing import Final

_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"(\d+)([kmg]?)b?", re.IGNORECASE)


def duration(text: str) -> float:
    """Return seconds: 5s, 250ms, 1m30s, or a plain number of seconds.

    Raises:
        argparse.ArgumentTypeError: it is no duration.
    """
    # Imported here: rarely given, and all the options of the daemons come with it.
    from nsqd.config.kinds import parse_duration

    try:
        return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a duration: {text!r}") from error


def size(text: str) -> int:
    """Return bytes: 1000, 8m, 1g.

    Raises:
        argparse.ArgumentTypeError: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r}")
    return int(match[1]) * _SIZES[match[2].lower()]


def delimiter(text: str) -> bytes:
    r"""Return the bytes between messages; \n, \t, \0 and \xNN are escapes.

    Raises:
        argparse.ArgumentTypeError: it is empty, or a wrong escape.
    """
    try:
        raw = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
        found = raw.encode("latin-1") if raw.isascii() or "\\" in text else text.encode()
    except (UnicodeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"not a delimiter: {text!r}") from error
    if not found:
        raise argparse.ArgumentTypeError("the delimiter is empty")
    return found


def positive(text: str) -> int:
    """Return a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return int(text)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command: where to connect, and how to print."""
    where = parser.add_argument_group("where")
    where.add_argument(
        "-a",
        "--nsqd",
        action="append",
        default=[],
        metavar="HOST[:TCP[:HTTP]]",
        help="an nsqd (ports 4150 and TCP+1), or the path of its unix socket; repeatable",
    )
    where.add_argument(
        "-l",
        "--lookupd",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="an nsqlookupd (port 4161), or its URL; repeatable",
    )
    where.add_argument("--context", metavar="NAME", help="a saved context; see nsq context")
    where.add_argument("--no-context", action="store_true", help="ignore the selected context")
    where.add_argument("--tls", action="store_true", help="encrypt")
    where.add_argument("--tls-ca", metavar="FILE", help="authorities to trust (implies --tls)")
    where.add_argument("--tls-cert", metavar="FILE", help="certificate of this client")
    where.add_argument("--tls-key", metavar="FILE", help="key of this client")
    where.add_argument("--tls-insecure", action="store_true", help="trust every server")
    where.add_argument("--auth-secret-file", metavar="FILE", help="secret for AUTH")
    where.add_argument("--token-file", metavar="FILE", help="bearer token for HTTP")
    where.add_argument(
        "--timeout", type=duration, default=5.0, metavar="TIME", help="of a request (5s)"
    )
    how = parser.add_argument_group("output")
    how.add_argument("--json", action="store_true", help="objects, one on a line")
    how.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")
    how.add_argument("-v", "--verbose", action="store_true", help="log connections")
    how.add_argument("--color", choices=("auto", "always", "never"), default="auto",
                     help="on a terminal, unless NO_COLOR is set (auto)")  # fmt: skip


def add_consumer(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that consume."""
    group = parser.add_argument_group("consuming")
    group.add_argument("--max-in-flight", type=positive, default=2500, metavar="N",
                       help="messages that nsqd sends ahead of FINs (2500)")  # fmt: skip
    group.add_argument("--msg-timeout", type=duration, metavar="TIME",
                       help="until nsqd gives a message to another (nsqd's own)")  # fmt: skip
    group.add_argument("--sample", type=int, default=0, metavar="PERCENT",
                       help="only so many of the messages; nsqd drops the rest")  # fmt: skip
    group.add_argument("--max-attempts", type=int, default=0, metavar="N",
                       help="give a message up after N; needs --dead-letter")  # fmt: skip
    group.add_argument("--dead-letter", metavar="TOPIC", help="where messages given up go")
    group.add_argument("--opt", action="append", default=[], metavar="KEY=VALUE",
                       help="option of go-nsq's Config: default_requeue_delay=10s")  # fmt: skip
    group.add_argument("--snappy", action="store_true", help="compress with snappy")
    group.add_argument("--deflate", action="store_true", help="compress with deflate")


def add_messages(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a format and a filter."""
    group = add_formats(parser)
    group.add_argument("--grep", metavar="REGEX", help="only bodies that match")
    group.add_argument("--where", action="append", default=[], metavar="FIELD=VALUE",
                       help="only JSON bodies with this; = != < > ~, dotted paths")  # fmt: skip


def add_formats(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags that choose a format."""
    group = parser.add_argument_group("messages")
    codes = "%%t topic, %%c channel, %%i id, %%a attempts, %%T time, %%n nsqd, %%S size, %%s body"
    group.add_argument("--format", metavar="TEXT", help=codes)
    group.add_argument("--pretty", action="store_true", help="JSON bodies over several lines")
    group.add_argument("--time", action="store_true", help="the time of publishing before each")
    group.add_argument("--print-topic", action="store_true", help="the topic before each")
    group.add_argument("-0", dest="is_null", action="store_true", help="NUL behind each")
    group.add_argument("--hex", action="store_true", help="bodies as hexadecimal digits")
    group.add_argument("--framed", action="store_true", help="int32 size and bytes")
    return group
