"""`make fuzz SECONDS=60 TARGET=wire`: look for inputs that break a reader, guided by coverage."""

import argparse
import logging
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.target import CORPUS

ALL = "all"


def main() -> int:
    """Fuzz one target here, or all of them in turn; return 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    names = sorted(path.name for path in CORPUS.iterdir())
    parser.add_argument("--target", default=ALL, choices=[ALL, *names])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--input", type=Path, help="run the target on this file and nothing else")
    arguments = parser.parse_args()
    if arguments.target == ALL:
        return max(run_apart(name, sys.argv[1:]) for name in names)
    logging.disable(logging.CRITICAL)
    if arguments.input is not None:
        from tests.fuzz.targets import TARGETS

        TARGETS[arguments.target].run(arguments.input.read_bytes())
        return 0
    from tests.fuzz.libfuzzer import fuzz, guided_imports

    with guided_imports():
        from tests.fuzz.targets import TARGETS
    return fuzz(TARGETS[arguments.target], seconds=arguments.seconds, seed=arguments.seed)


def run_apart(name: str, argv: list[str]) -> int:
    """Fuzz a target in a process of its own, as libFuzzer ends it; return 1 if it fails."""
    print(f"--- {name}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *argv, "--target", name], check=False
    )
    return 0 if done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
