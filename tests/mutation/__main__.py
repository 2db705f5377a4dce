"""Test a sample of mutants, each against the tests that reach its line.

The tests of the module run first, then other unit tests, then daemons over sockets; the first test
that fails has killed the mutant.
"""

import argparse
import difflib
import queue
import resource
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation import reach
from tests.mutation.copy import Copy
from tests.mutation.mutants import PACKAGES, ROOT, Mutant, draw

MEMORY_BYTES = 8 << 30  # a mutant may allocate for ever


def main() -> int:
    """Test a sample, print each mutant and at last the diffs of those alive; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of a sample, to run again")
    parser.add_argument(
        "--within",
        nargs="+",
        default=PACKAGES,
        metavar="PATH",
        help="draw from these modules, or those below these folders, only",
    )
    parser.add_argument(
        "--old-trace", action="store_true", help="do not trace again which tests reach which lines"
    )
    parser.add_argument("--units", action="store_true", help="run unit tests only")
    options = parser.parse_args()
    if not options.old_trace and not reach.is_current():
        say("tracing which tests reach which lines")
        reach.trace()
    reached = reach.Reach()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    drawn = dict(enumerate(draw(options.seed, options.sample, options.within)))
    chosen = {number: drawn[number] for number in options.only or drawn}
    alive: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        first = Path(folder, "0")
        Copy(first).fill()
        for number in range(options.jobs):
            path = Path(folder, str(number))
            if number:
                shutil.copytree(first, path)
            copies.put(Copy(path))

        def test(number: int) -> None:
            it = chosen[number]
            copy = copies.get()
            layers = reached.find_layers(it.module, it.line, are_units_all=options.units)
            killer = copy.test(it, layers)
            copies.put(copy)
            if not killer:
                alive.append(it)
            say(f"{number:3} {it.module}:{it.line} {it.operator}: {killer or 'ALIVE'}")

        with ThreadPoolExecutor(options.jobs) as threads:
            list(threads.map(test, chosen))
        while not copies.empty():
            copies.get().close()
    for mutant in alive:
        say(describe(mutant))
    killed = len(chosen) - len(alive)
    say(f"seed {options.seed}: {killed} of {len(chosen)} killed, {killed / len(chosen):.1%}")
    return 0


def describe(mutant: Mutant) -> str:
    """Return the diff of a mutant."""
    code = (ROOT / mutant.module).read_text()
    changed = (mutant.mutate(code) or "").splitlines()
    names = (mutant.module, f"{mutant.module} {mutant.operator}")
    return "\n".join(difflib.unified_diff(code.splitlines(), changed, *names, "", "", 2, ""))


def say(text: str) -> None:
    """Print at once: a sample takes long."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
