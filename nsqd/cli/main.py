"""The command `nsq`: find the command, parse its arguments, run it, return its exit code.

| code | |
| --- | --- |
| 0 | done; for `tail` also after SIGINT or SIGTERM, and when the reader of stdout has gone |
| 1, 2 | failed; wrong usage |
| 3 | no such topic, channel or node, or the daemon lacks the feature |
| 4 | `--wait` or `--timeout` was over first, or fewer than `-n` came |
| 5 | not allowed: AUTH, token, certificate |
| 6 | done in part: some nodes failed |
| 130, 143 | interrupted before the end of the input |
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from nsqd import PROTOCOL_VERSION, __version__
from nsqd.cli.output import CliError, ExitCode, did_you_mean

# A command and the module that has it, with one sentence of help.
COMMANDS: Final = {
    "pub": ("nsqd.cli.messages.pub", "publish messages: arguments, lines of stdin, or files"),
    "tail": ("nsqd.cli.messages.tail", "show messages as they come"),
    "peek": ("nsqd.cli.messages.peek", "show messages that wait, without touching them"),
    "stat": ("nsqd.cli.watch.stat", "show the figures of a topic, again and again"),
    "topic": ("nsqd.cli.admin.topics", "list, create, delete, pause, unpause, empty topics"),
    "channel": ("nsqd.cli.admin.topics", "list, create, delete, pause, unpause, empty channels"),
    "node": ("nsqd.cli.admin.nodes", "list, ping, drain, tombstone nodes"),
    "context": ("nsqd.cli.setup.context", "save where nsqd is, and what it asks for"),
    "version": ("nsqd.cli.main", "print the version"),
}


class Parser(argparse.ArgumentParser):
    """argparse, with errors that the caller prints."""

    def error(self, message: str) -> NoReturn:
        """Raise the error.

        Raises:
            CliError: always, with exit code 2.
        """
        raise CliError(f"{message}\n{self.format_usage().strip()}", ExitCode.USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_json = "--json" in arguments or os.environ.get("NSQ_OUTPUT") == "json"
    try:
        return _run(arguments)
    except CliError as error:
        _print_error(error, is_json=is_json)
        return error.code
    except BrokenPipeError:
        # The reader has gone, as with `| head`. Python would complain again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return ExitCode.DONE if arguments else ExitCode.USAGE
    name, *rest = arguments
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        raise CliError(f"no command {name!r}{hint} See nsq --help", ExitCode.USAGE)
    module_name, help_text = COMMANDS[name]
    module: Any = importlib.import_module(module_name)
    parser = Parser(
        prog=f"nsq {name}",
        description=help_text[0].upper() + help_text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=getattr(module, "EXAMPLES", {}).get(name),
        allow_abbrev=False,
    )
    module.add_arguments(parser, name)
    options = parser.parse_intermixed_args(rest) if name == "pub" else parser.parse_args(rest)
    code: int = module.run(options, name)
    return code


def usage() -> str:
    """Return the help of `nsq` itself."""
    lines = [f"  {name:<10}{help_text}" for name, (_, help_text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: nsq COMMAND [ARGUMENT...]",
            "",
            "Talk to nsqd and nsqlookupd. Without an address: $NSQD_TCP_ADDRESS, the selected",
            "context, or 127.0.0.1.",
            "",
            *lines,
            "",
            "nsq COMMAND --help shows the flags and examples of a command.",
        ]
    )


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq version`."""
    parser.add_argument("--json", action="store_true", help="print an object")


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq version`."""
    if options.json:
        print(json.dumps({"version": __version__, "nsq": PROTOCOL_VERSION}))
    else:
        print(f"nsq {__version__} (as of NSQ v{PROTOCOL_VERSION})")
    return ExitCode.DONE


def _print_error(error: CliError, *, is_json: bool) -> None:
    text = str(error)
    if is_json:
        text = json.dumps({"error": text, "code": int(error.code)})
        print(text, file=sys.stderr)
    else:
        print(f"nsq: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
