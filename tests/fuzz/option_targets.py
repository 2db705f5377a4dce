"""What an operator writes: command lines, config files; and what an auth server says of names."""

import contextlib
import logging
import tempfile
from pathlib import Path

from nsqd.config.flags import CommandLineExit, ConfigError, OptionsError
from nsqd.config.logs import LineFormatter
from nsqd.config.options import COMMAND, check_options
from nsqd.config.redaction import redact
from nsqd.tcp.auth_patterns import Pattern, PatternError

SECRET = "hush-hush"
NAMES = ("", "a", "orders.v2", "x" * 64, "a-b_c#ephemeral")


def check_command_line(data: bytes) -> None:
    """A command line is understood, or refused with a status and a text."""
    argv = data.decode("utf-8", "surrogateescape").split("\0")
    if any(argument.lstrip("-").startswith("config") for argument in argv):
        return  # the file of another target
    with contextlib.suppress(CommandLineExit, OptionsError):
        check_options(COMMAND.read(argv))


def check_config_file(data: bytes) -> None:
    """A config file is understood, or refused with a text."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        with contextlib.suppress(ConfigError, OptionsError):
            check_options(COMMAND.read([f"--config={file.name}"]))


def check_pattern(data: bytes) -> None:
    """A pattern is compiled or refused, and answers for every name in time."""
    try:
        pattern = Pattern(data.decode("utf-8", "replace"))
    except PatternError:
        return
    for name in NAMES:
        pattern.matches(name)


def check_log_line(data: bytes) -> None:
    """Whatever is logged, each line begins as ours do and holds nothing that a terminal obeys."""
    text = data.decode("utf-8", "surrogateescape")
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "levelno": 20})
    lines = LineFormatter("[x] ").format(record).split("\n")
    for line in lines:
        assert line.startswith("[x] ")
        assert not any((ord(one) < 32 and one != "\t") or 0x7F <= ord(one) < 0xA0 for one in line)
    for secret in (f"http://user:{SECRET}@host/", f"/pub?topic=t&token={SECRET}", f"u:{SECRET}@h"):
        assert SECRET not in redact(f"{text} {secret} {text}")
