"""`nsq disk`: python -m diskqueue under another name."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

EXAMPLES: Final = {
    "disk": """examples:
  nsq disk check /var/lib/nsqd
  nsq disk dump /var/lib/nsqd/orders.diskqueue.000000.dat --limit 3
  nsq disk salvage /var/lib/nsqd/orders.diskqueue.000002.dat.bad"""
}
ACTIONS: Final = ("check", "dump", "salvage")


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq disk`."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="see nsq disk ACTION --help")


def run(options: argparse.Namespace, _name: str) -> int:
    """Become `python -m diskqueue`, whose exit code is that of `nsq disk`."""
    sys.stdout.flush()
    # -P: a folder called diskqueue in the working directory is not the program.
    argv = [sys.executable, "-P", "-m", "diskqueue", options.action, *options.rest]
    os.execv(sys.executable, argv)
