"""`nsq examples`: the examples that stand in the help of the commands."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from nsqd.cli.commands import COMMANDS, find_examples
from nsqd.cli.output import CliError, ExitCode, did_you_mean, has_colour, print_json

EXAMPLES: Final = {
    "examples": """examples:
  nsq examples
  nsq examples pub
  nsq examples tail --json"""
}


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq examples`."""
    parser.add_argument("command", nargs="?", metavar="COMMAND")
    parser.add_argument("--json", action="store_true", help="objects, one on a line")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq examples`.

    Raises:
        CliError: there is no such command.
    """
    if options.command is not None and options.command not in COMMANDS:
        hint = did_you_mean(options.command, COMMANDS)
        raise CliError(f"no command {options.command!r}{hint}", ExitCode.USAGE)
    names = [options.command] if options.command else list(COMMANDS)
    is_coloured = has_colour(sys.stdout, options.color)
    for name in names:
        lines = find_examples(name)
        if options.json:
            for line in lines:
                print_json({"command": name, "example": line})
        elif lines:
            title = f"{name}: {COMMANDS[name][1]}"
            print(f"\x1b[1m{title}\x1b[0m" if is_coloured else title)
            print("\n".join(f"  {line}" for line in lines) + "\n")
    return ExitCode.DONE
