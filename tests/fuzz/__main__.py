"""`make fuzz SECONDS=60 TARGET=wire`: look for inputs that break a reader, guided by coverage.

With atheris installed, `--engine atheris` hands one target to libFuzzer instead.
"""

import argparse
import contextlib
import importlib
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.fuzz.engine import CORPUS, FAILURES, Target, check_input, fuzz, save

ALL = "all"
PACKAGES = ["nsqd", "diskqueue", "lookupd"]


def main() -> int:
    """Fuzz one target or all in turn; return 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", default=ALL, help="a folder of the corpus, or all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--engine", choices=["own", "unguided", "atheris"], default="own")
    parser.add_argument("--input", type=Path, help="run the target on this file and nothing else")
    parser.add_argument("--keep", action="store_true", help="add to the corpus what is new")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    atheris = importlib.import_module("atheris") if arguments.engine == "atheris" else None
    # libFuzzer is guided by what is imported in here.
    with contextlib.nullcontext() if atheris is None else atheris.instrument_imports(PACKAGES):
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    names = list(targets) if arguments.target == ALL else [arguments.target]
    if not set(names) <= set(targets):
        parser.error(f"no target {arguments.target}; there are {', '.join(targets)}")
    chosen: list[Target] = [targets[name] for name in names]
    if arguments.input is not None:
        for target in chosen:
            check_input(target, arguments.input.read_bytes())
        return 0
    if atheris is not None:
        run_atheris(atheris, chosen[0], arguments)
    results = [run(target, arguments) for target in chosen]
    return 0 if all(results) else 1


def run(target: Target, arguments: argparse.Namespace) -> bool:
    """Fuzz a target and print what came of it; False if it failed."""
    is_guided = arguments.engine == "own"
    report = fuzz(target, seconds=arguments.seconds, seed=arguments.seed, is_guided=is_guided)
    print(
        f"{target.name:16} inputs={report.run_count} steps={report.step_count}"
        f" new={len(report.finds)} seed={arguments.seed}"
    )
    if arguments.keep:
        for data in report.finds:
            path = save(target, data)
            path.rename(CORPUS / target.name / f"found-{path.name}")
    if report.error is None:
        return True
    assert report.failure is not None
    traceback.print_exception(report.error)
    print(f"{target.name}: {report.failure.hex()}\nsaved as {report.saved_as}")
    return False


def run_atheris(atheris: Any, target: Target, arguments: argparse.Namespace) -> None:
    """Hand the target to libFuzzer, which ends the process."""
    folder = FAILURES / f"atheris-{target.name}"
    folder.mkdir(parents=True, exist_ok=True)
    flags = (
        *(f"-max_total_time={arguments.seconds:.0f}", f"-seed={arguments.seed}"),
        *(f"-artifact_prefix={folder}/", f"-max_len={target.max_bytes}", "-timeout=10"),
    )
    atheris.Setup([sys.argv[0], *flags, str(folder), str(CORPUS / target.name)], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
