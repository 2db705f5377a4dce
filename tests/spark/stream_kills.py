"""make stream-kills: kill -9 of a Spark driver and of its nsqd, at random, 20 times each.

    python -m tests.spark.stream_kills --kills 20
    python -m tests.spark.stream_kills --kills 5 --kind bare --seed 7

Topics are deleted, emptied and made anew in between. Half of it reads the queues, half the archive,
over HTTP or in the directory. The exit code is 0 if every row is there once, or its loss was told.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.support.streams.campaign import BrokenPromiseError, Campaign


def say(text: str) -> None:
    """Print a line at once, though stdout may be a file."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def play(directory: Path, *, kind: str, origin: str, kill_count: int, seed: int) -> None:
    """Kill driver and nsqd so many times each, and look at the rows.

    Raises:
        BrokenPromiseError: some are missing, or there twice.
    """
    chance = random.Random(seed)
    # A driver without Spark does in a tenth of a second what Spark does in one.
    pace = 1.0 if kind == "spark" else 0.1
    with Campaign(directory, kind=kind, origin=origin, seed=seed, say=say) as campaign:
        for number in range(kill_count):
            campaign.start_driver()
            campaign.wait_for_driver("batch" if chance.random() < 0.8 else "started")
            while campaign.kill_count["nsqd"] <= number:
                time.sleep(chance.uniform(0, 3) * pace)
                if chance.random() < 0.6:
                    campaign.remove_messages()
                campaign.kill_node()
            time.sleep(chance.uniform(0, 4) * pace)
            campaign.kill_driver()
        campaign.finish()


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.stream_kills")
    parser.add_argument("--kills", type=int, default=20, help="of the driver, and of nsqd")
    parser.add_argument("--kind", choices=["spark", "bare"], default="spark")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed
    if seed is None:
        seed = random.SystemRandom().getrandbits(32)
    place = Path(tempfile.mkdtemp(prefix="nsqd-stream-kills-"))
    say(f"stream-kills: --seed {seed}, files in {place}")
    began = time.monotonic()
    for origin, count in (("backlog", arguments.kills // 2), ("archive", -(-arguments.kills // 2))):
        try:
            play(place / origin, kind=arguments.kind, origin=origin, kill_count=count, seed=seed)
        except BrokenPromiseError as error:
            say(f"FAILED {origin}: {error}")
            return 1
        say(f"{origin}: passed, {time.monotonic() - began:.0f} s")
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
