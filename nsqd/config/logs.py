"""The log of both daemons: lines on stderr in NSQ's format, with a level that can change.

    [nsqd] 2026/11/15 23:28:27.011956 INFO: TCP: listening on 127.0.0.1:4150
    prefix date       local time      level text

With `--log-format=json` each record is one line of JSON, with the time in UTC and no prefix:

    {"time":"2026-11-15T23:28:27.011956Z","level":"info","logger":"nsqd.daemon","message":"..."}

stdlib logging does the rest; only `__main__` configures it. A line may hold bytes that a client
sent: they can neither begin a new line nor control a terminal, and passwords and tokens in them are
replaced by *** (`redaction`). The reader of stderr may be slow, stuck or gone without stopping the
daemon: lines are dropped then, and counted.
"""

import enum
import json
import logging
import os
import select
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO

from diskqueue.tools.plain_text import escape_text
from nsqd.config.kinds import Kind, special
from nsqd.config.redaction import redact, shorten_line

# A pipe that polls as writable takes this many bytes without blocking.
_CHUNK_BYTES = select.PIPE_BUF
# How long a full pipe may delay the daemon, once, before lines are dropped.
PATIENCE_MS = 100


class LogLevel(enum.IntEnum):
    """NSQ's levels; the integers are what GET /config/log_level shows."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @property
    def stdlib_level(self) -> int:
        """The same level in stdlib logging."""
        return self * 10


def parse_log_level(text: str) -> LogLevel:
    """Return the level of that name, in any case.

    Raises:
        ValueError: there is none.
    """
    spelled = text.lower()
    for level in LogLevel:
        if level.name.lower() == spelled:
            return level
    raise ValueError(f"invalid log level '{text}' (debug, info, warn, error, fatal)")


LOG_LEVEL: Kind[LogLevel] = special(
    "debug|info|warn|error|fatal", parse_log_level, lambda level: level.name.lower(), to_json=int
)


class LogFormat(enum.Enum):
    """How the lines of the log look."""

    TEXT = "text"
    JSON = "json"


def parse_log_format(text: str) -> LogFormat:
    """Return the format of that name, in any case.

    Raises:
        ValueError: there is none.
    """
    try:
        return LogFormat(text.lower())
    except ValueError:
        raise ValueError(f"invalid log format '{text}' (text, json)") from None


LOG_FORMAT: Kind[LogFormat] = special(
    "text|json", parse_log_format, lambda log_format: log_format.value, to_json=lambda it: it.value
)


def configure(prefix: str, level: LogLevel, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Send all logging to stderr, and drop an earlier handler of ours."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, StderrHandler):
            root.removeHandler(handler)
            handler.close()
    handler = StderrHandler(sys.stderr)
    is_json = log_format is LogFormat.JSON
    handler.setFormatter(JsonFormatter() if is_json else LineFormatter(prefix))
    root.addHandler(handler)
    # No line shows them, and they take a third of the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - as its manual says
    set_level(level)


def set_level(level: LogLevel) -> None:
    """Set the level of all loggers."""
    logging.getLogger().setLevel(level.stdlib_level)


def fatal_line(program: str, text: str, *, level: str = "FATAL") -> None:
    """Print why the program cannot start, at any log level and with the program as prefix."""
    if any(
        isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers
    ):
        line = _format_json(time.time(), level, program, text)
    else:
        line = _format_lines(f"[{program}] ", time.time(), level, text)
    StderrHandler(sys.stderr).write(line)


class LineFormatter(logging.Formatter):
    """Format records as NSQ does; each line of a traceback or multi-line text gets the header."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        is_plain = record.exc_info is None and record.stack_info is None
        text = record.getMessage() if is_plain else super().format(record)
        return _format_lines(self._prefix, record.created, _level_word(record.levelno), text)


class JsonFormatter(logging.Formatter):
    """Format each record as one line of JSON, a traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        trace = ""
        if record.exc_info:
            trace = self.formatException(record.exc_info)
        level = _level_word(record.levelno)
        return _format_json(record.created, level, record.name, text, trace)


def _format_json(created: float, level: str, logger: str, text: str, trace: str = "") -> str:
    moment = datetime.fromtimestamp(created, UTC).isoformat(timespec="microseconds")
    fields = {
        "time": moment.replace("+00:00", "Z"),
        "level": level.lower(),
        "logger": logger,
        "message": _clean(text),
    }
    if trace:
        fields["exception"] = _clean(trace)
    # In ASCII: escapes stand for the characters that terminals obey.
    return json.dumps(fields, separators=(",", ":"))


def _format_lines(prefix: str, created: float, level: str, text: str) -> str:
    second = int(created)
    microseconds = min(round((created - second) * 1e6), 999_999)
    header = f"{prefix}{_format_second(second)}.{microseconds:06d} {level}: "
    if text.isprintable():  # most are: no control characters and no ends of lines
        return header + redact(shorten_line(text))
    # Only a line feed ends a line: a client's bytes must not make thousands of them.
    lines = text.removesuffix("\n").split("\n")
    return "\n".join(header + escape_text(redact(shorten_line(line))) for line in lines)


def _clean(text: str) -> str:
    return "\n".join(redact(shorten_line(line)) for line in text.split("\n"))


@lru_cache(maxsize=1)
def _format_second(second: int) -> str:
    """Return the local time; kept for the other lines of that second, as it takes 15 us."""
    return datetime.fromtimestamp(second).strftime("%Y/%m/%d %H:%M:%S")


def _level_word(stdlib_level: int) -> str:
    if stdlib_level >= logging.CRITICAL:
        return "FATAL"
    if stdlib_level >= logging.ERROR:
        return "ERROR"
    if stdlib_level >= logging.WARNING:
        return "WARNING"
    return "INFO" if stdlib_level >= logging.INFO else "DEBUG"


class StderrHandler(logging.Handler):
    """Write lines to a stream, wait for a stuck reader once and briefly, and never raise.

    Bytes go straight to the descriptor in chunks: only then does poll() know whether a write would
    block, and no buffer is left that could block or fail again at exit.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._poll = select.poll()
        if self._descriptor is not None:
            self._poll.register(self._descriptor, select.POLLOUT)
        # Whether the reader was too slow for the last line, so that the next one does not wait.
        self._is_stuck = False
        # Lines lost since the last one that got through.
        self._dropped_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except (TypeError, ValueError, KeyError) as error:
            # A format string that does not fit its arguments is our bug; the log says so itself.
            text = f"cannot format log message {record.msg!r} {record.args!r}: {error}"
            line = self.format(_record(logging.ERROR, record.created, text))
        if self._dropped_count:
            text = f"log lines dropped count={self._dropped_count}"
            if self.write(self.format(_record(logging.WARNING, record.created, text))):
                self._dropped_count = 0
        if not self.write(line):
            self._dropped_count += 1

    def write(self, line: str) -> bool:
        """Write one line; return False if the reader did not take all of it."""
        if self._stream is None:
            return True
        try:
            if self._descriptor is not None:
                data = (line + "\n").encode("utf-8", "backslashreplace")
                return self._write_bytes(self._descriptor, data)
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # Gone, closed or full; there is no second place to complain.
            return False
        return True

    def _write_bytes(self, descriptor: int, data: bytes) -> bool:
        while data:
            self._is_stuck = not self._poll.poll(0 if self._is_stuck else PATIENCE_MS)
            if self._is_stuck:
                return False
            data = data[os.write(descriptor, data[:_CHUNK_BYTES]) :]
        return True


def _record(stdlib_level: int, created: float, text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"levelno": stdlib_level, "created": created, "msg": text})


def _descriptor_of(stream: TextIO | None) -> int | None:
    """Return None for a stream in memory, and for stderr closed before the start."""
    if stream is None:
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):  # io.UnsupportedOperation is both.
        return None
