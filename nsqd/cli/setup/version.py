"""`nsq version`: which version this is, and as of which NSQ it behaves."""

from __future__ import annotations

import argparse
from typing import Final

from nsqd import PROTOCOL_VERSION, __version__
from nsqd.cli.output import ExitCode, print_json

EXAMPLES: Final = {
    "version": """examples:
  nsq version
  nsq version --json
  nsq --version"""
}


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq version`."""
    parser.add_argument("--json", action="store_true", help="print an object")


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq version`."""
    if options.json:
        print_json({"version": __version__, "nsq": PROTOCOL_VERSION})
    else:
        print(f"nsq {__version__} (as of NSQ v{PROTOCOL_VERSION})")
    return ExitCode.DONE
