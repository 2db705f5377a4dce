"""nsqd on a watched disk, as a program.

    python -m tests.support.faults.runner [--plan RULE]... [--journal FILE] [--switch FILE]
        [--stock-loop] -- NSQD FLAGS...

The journal and rules for `send` need asyncio's own loop (--stock-loop), whose sends can be seen.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.faults.journal import JournalWriter
from tests.support.faults.plan import SEND, Rule
from tests.support.faults.watched_disk import WatchedDisk

_DATA_PATH = "--data-path="


@dataclass(slots=True)
class Run:
    """How to run nsqd."""

    flags: list[str]
    plan: list[str] = field(default_factory=list)
    journal: str | None = None
    switch: str | None = None
    is_on_stock_loop: bool = False


def run(how: Run) -> int:
    """Run nsqd in this process and return its exit code."""
    rules = [Rule.parse(text) for text in how.plan]
    needs_sends = how.journal is not None or any(rule.operation == SEND for rule in rules)
    if how.is_on_stock_loop or needs_sends:
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    if rules or how.journal is not None:
        [root] = [flag.removeprefix(_DATA_PATH) for flag in how.flags if _DATA_PATH in flag]
        journal = None if how.journal is None else JournalWriter(Path(how.journal))
        WatchedDisk(root, rules, journal, how.switch).install()
    from nsqd.__main__ import main as nsqd_main

    return nsqd_main(how.flags)


def main() -> int:
    """Run nsqd as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.faults.runner")
    parser.add_argument("--plan", action="append", default=[], metavar="RULE")
    parser.add_argument("--journal", metavar="FILE")
    parser.add_argument("--switch", metavar="FILE")
    parser.add_argument("--stock-loop", action="store_true")
    parser.add_argument("flags", nargs="*", metavar="NSQD FLAG")
    arguments = parser.parse_args()
    return run(
        Run(
            arguments.flags,
            arguments.plan,
            arguments.journal,
            arguments.switch,
            is_on_stock_loop=arguments.stock_loop,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
