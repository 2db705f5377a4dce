"""make soak: one random scenario after the other, until the time is over or a promise is broken.

    python -m tests.crash.soak --minutes 30
    python -m tests.crash.soak --seed kill-1234 --rounds 10      one of them again, ten times
    python -m tests.crash.soak --only cut --rounds 200

Every line of progress and the verdict go to stdout; the exit code is 0 if nothing was lost.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.support.faults.fork_server import ForkServer
from tests.support.faults.rounds import SCENARIOS, Tally, play

PROGRESS_S = 10.0
ROUND_LIMIT_S = 120.0


def say(text: str) -> None:
    """Print a line at once, though stdout may be a file."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def soak(arguments: argparse.Namespace) -> int:
    """Play rounds; return how many failed."""
    chance = random.Random(arguments.master)
    names = arguments.only or list(SCENARIOS)
    started = shown = time.monotonic()
    ends_at = started + arguments.minutes * 60
    tally = Tally()
    failures: list[str] = []
    with ForkServer() as server:
        while time.monotonic() < ends_at and tally.rounds < (arguments.rounds or tally.rounds + 1):
            seed = arguments.seed or f"{chance.choice(names)}-{chance.getrandbits(32)}"
            place = Path(arguments.directory, str(tally.rounds))
            try:
                async with asyncio.timeout(ROUND_LIMIT_S):
                    await play(server, place, seed, tally)
            except Exception as error:  # noqa: BLE001 - every failure is told, and ends in the verdict
                failures.append(seed)
                say(f"FAILED {seed}: {type(error).__name__}: {error}")
                if len(failures) >= arguments.max_failures:
                    break
            if time.monotonic() - shown >= PROGRESS_S:
                shown = time.monotonic()
                say(f"elapsed={shown - started:.0f}s {tally} failures={len(failures)} last={seed}")
    verdict = f"FAILED: {' '.join(failures)}" if failures else "PASSED"
    say(f"{verdict} elapsed={time.monotonic() - started:.0f}s {tally} failures={len(failures)}")
    return len(failures)


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=0, help="end after so many")
    parser.add_argument("--seed", help="play this one, again and again")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="scenarios")
    parser.add_argument("--master", type=int, default=None, help="the seed of all seeds")
    parser.add_argument("--directory", default=None, help="where the daemons have their data")
    parser.add_argument("--max-failures", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.master is None:
        arguments.master = random.SystemRandom().getrandbits(32)
    if arguments.seed and not arguments.rounds:
        arguments.rounds = 1
    arguments.directory = tempfile.mkdtemp(prefix="nsqd-soak-", dir=arguments.directory)
    say(f"soak: --master {arguments.master}, files in {arguments.directory}")
    if asyncio.run(soak(arguments)):
        return 1
    shutil.rmtree(arguments.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
