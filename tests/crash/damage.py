"""Damage of queue files in any place, for many seeds, until a message is wrong or lost.

    python -m tests.crash.damage --seeds 2000
    python -m tests.crash.damage --seed 17            one of them again

The exit code is 0 if all is well.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

from tests.support.disk_damage import Outcome, play


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.damage")
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this one")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    totals: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="nsqd-damage-") as directory:
        for seed in seeds:
            outcome = play(Path(directory, str(seed)), seed)
            _add(totals, outcome)
            if outcome.problems:
                say(f"FAILED seed {seed}: {'; '.join(outcome.problems)} ({outcome.what})")
    failed = totals.pop("failed", 0)
    figures = " ".join(f"{name}={count}" for name, count in totals.items())
    say(f"{'FAILED' if failed else 'PASSED'} seeds={len(seeds)} failed={failed} {figures}")
    return 1 if failed else 0


def _add(totals: "collections.Counter[str]", outcome: Outcome) -> None:
    totals["changed"] += outcome.is_changed
    totals["messages"] += outcome.message_count
    totals["held"] += outcome.held_count
    totals["delivered"] += outcome.delivered_count
    totals["refused"] += outcome.refused_count
    totals["failed"] += bool(outcome.problems)


if __name__ == "__main__":
    sys.exit(main())
