"""The table of commands, and the parser of each; the module of a command is imported only then."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any, Final, NoReturn

from nsqd.cli.output import CliError, ExitCode

# A command, its module and a sentence of help; in the groups that `nsq --help` shows.
GROUPS: Final = {
    "messages": {
        "pub": ("nsqd.cli.messages.pub", "publish messages: arguments, lines of stdin, or files"),
        "tail": ("nsqd.cli.messages.tail", "show messages as they come"),
        "peek": ("nsqd.cli.messages.peek", "show messages that wait, without touching them"),
    },
    "handing on": {
        "to-file": ("nsqd.cli.sinks.to_file", "write messages to files that survive a power cut"),
        "to-http": ("nsqd.cli.sinks.to_http", "make an HTTP request for each message"),
        "to-nsq": ("nsqd.cli.sinks.to_nsq", "publish messages to other nsqds"),
        "each": ("nsqd.cli.sinks.each", "run a program for each message"),
        "dead": ("nsqd.cli.sinks.dead", "list, peek at, replay, drop dead letters"),
    },
    "watching": {
        "top": ("nsqd.cli.watch.top", "watch nodes, topics and channels on a full screen"),
        "stat": ("nsqd.cli.watch.stat", "show the figures of a topic, again and again"),
        "check": ("nsqd.cli.watch.check", "one line and exit code for Nagios and its like"),
        "doctor": ("nsqd.cli.watch.doctor", "look for what is wrong with a cluster"),
    },
    "administration": {
        "topic": ("nsqd.cli.admin.topics", "list, create, delete, pause, unpause, empty topics"),
        "channel": ("nsqd.cli.admin.topics", "list and change channels, as topic does"),
        "node": ("nsqd.cli.admin.nodes", "list, ping, drain, tombstone nodes"),
        "client": ("nsqd.cli.admin.clients", "list who is connected"),
        "limits": ("nsqd.cli.admin.limits", "show and set what a topic may hold"),
        "config": ("nsqd.cli.admin.config", "show and set options of running nsqds"),
    },
    "programs": {
        "bench": ("nsqd.cli.programs.bench", "measure publishing, consuming, latency"),
        "disk": ("nsqd.cli.programs.disk", "check, dump, salvage queue files"),
        "spark": ("nsqd.cli.programs.spark", "report, sql, export, replay over queue files"),
    },
    "nsq itself": {
        "context": ("nsqd.cli.setup.context", "save where nsqd is, and what it asks for"),
        "completion": ("nsqd.cli.setup.completion", "print a script that completes words"),
        "examples": ("nsqd.cli.setup.examples", "show examples of a command, or of all"),
        "version": ("nsqd.cli.setup.version", "print the version"),
    },
}
COMMANDS: Final = {name: entry for group in GROUPS.values() for name, entry in group.items()}
# Called by the scripts of `nsq completion` for names of topics and channels.
COMPLETE: Final = "__complete"
# The exit code of `nsq check` for its own failures.
NAGIOS_UNKNOWN: Final = 3


class Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse's help, as wide as the terminal; argparse loads shutil and all its codecs to ask."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_find_columns() - 2)


def _find_columns() -> int:
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return 80  # stdout is no terminal


class Parser(argparse.ArgumentParser):
    """argparse, with errors that the caller prints."""

    def error(self, message: str) -> NoReturn:
        """Raise the error.

        Raises:
            CliError: always, with exit code 2.
        """
        raise CliError(f"{message}\n{self.format_usage().strip()}", ExitCode.USAGE)


def make_parser(name: str) -> tuple[Parser, Any]:
    """Return the parser of a command, and the module that runs it."""
    module_name, help_text = COMMANDS[name]
    module: Any = importlib.import_module(module_name)
    examples = getattr(module, "EXAMPLES", {}).get(name, "")
    parser = Parser(
        prog=f"nsq {name}",
        description=f"{help_text[0].upper()}{help_text[1:]}.\n\n{examples}".rstrip(),
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser, name)
    parser.usage = _make_usage(parser)
    return parser, module


def _make_usage(parser: Parser) -> str:
    """Return the arguments on one line; the flags stand below, in groups."""
    words = [parser.prog, "[FLAG...]"]
    for action in parser._get_positional_actions():  # noqa: SLF001 - argparse shows them nowhere else
        name = str(action.metavar or action.dest.upper())
        if action.nargs == "?":
            name = f"[{name}]"
        elif action.nargs == "*":
            name = f"[{name}...]"
        elif action.nargs in ("+", argparse.PARSER):
            name = f"{name}..."
        elif action.nargs == argparse.REMAINDER:
            name = "[ARGUMENT...]"
        words.append(name)
    return " ".join(words)


def find_examples(name: str) -> list[str]:
    """Return the examples of a command, one line each."""
    module: Any = importlib.import_module(COMMANDS[name][0])
    text: str = getattr(module, "EXAMPLES", {}).get(name, "")
    return [line.strip() for line in text.splitlines()[1:]]
