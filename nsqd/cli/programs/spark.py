"""`nsq spark`: nsqd-spark under another name. Without the extra it says what to install."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

EXAMPLES: Final = {
    "spark": """examples:
  nsq spark report /var/lib/nsqd --output report
  nsq spark sql /var/lib/nsqd "select topic, count(*) from messages group by topic"
  nsq spark export /var/lib/nsqd --output /backup/messages"""
}


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq spark`."""
    parser.add_argument("action", metavar="ACTION", help="report, sql, export, replay, ...")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="see nsq spark ACTION --help")


def run(options: argparse.Namespace, _name: str) -> int:
    """Become `nsqd-spark`, whose exit code is that of `nsq spark`."""
    sys.stdout.flush()
    argv = [sys.executable, "-P", "-m", "spark_jobs", options.action, *options.rest]
    os.execv(sys.executable, argv)
