"""Runs a target on mutations of its corpus until the time is up or an input breaks a promise.

A target takes bytes and returns, whatever they are. What it lets out is a failure, and so is an
input that takes too long or makes the process grow: the input is made smaller and saved. The inputs
are a function of the seed, so a run can be repeated.
"""

import hashlib
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.fuzz.coverage import LineCoverage
from tests.fuzz.mutator import Mutator
from tests.support.daemon_process import REPOSITORY

CORPUS = Path(__file__).parent / "corpus"
FAILURES = REPOSITORY / "build" / "fuzz"
# Of processor time, for an input of some kilobytes: a thousand times what it takes.
MAX_INPUT_S = 1.0
# Tracing makes everything slower.
TRACED_FACTOR = 20
MAX_GROWTH_BYTES = 64 * 1024 * 1024
MAX_SHRINK_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """One surface: what reads untrusted bytes, behind the promises that it has to keep."""

    name: str
    check: Callable[[bytes], None]
    words: tuple[bytes, ...] = ()
    max_bytes: int = 4096

    def corpus(self) -> dict[str, bytes]:
        """Return the inputs that are kept, by name."""
        return {path.name: path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())}


class BrokenPromiseError(AssertionError):
    """An input took too much time or memory."""


@dataclass(slots=True)
class Report:
    """How a run ended."""

    run_count: int = 0
    step_count: int = 0
    # The smallest input found that fails, and what it raised.
    failure: bytes | None = None
    error: Exception | None = None
    saved_as: Path | None = None
    # What reached new code: worth keeping.
    finds: list[bytes] = field(default_factory=list)


def check_input(target: Target, data: bytes, *, factor: float = 1.0) -> None:
    """Run the target on one input.

    Raises:
        BrokenPromiseError: it took too much.
        Exception: whatever else the target lets out.
    """
    began_s = time.thread_time()
    before = _peak_bytes()
    target.check(data)
    took_s = time.thread_time() - began_s
    if took_s > MAX_INPUT_S * factor:
        raise BrokenPromiseError(f"{took_s:.1f} s for {len(data)} bytes")
    growth = _peak_bytes() - before
    if growth > MAX_GROWTH_BYTES:
        raise BrokenPromiseError(f"{growth >> 20} MB for {len(data)} bytes")


def fuzz(target: Target, *, seconds: float, seed: int, is_guided: bool = False) -> Report:
    """Try new inputs for so long; guided, those that reach new code have descendants."""
    report = Report()
    mutator = Mutator(random.Random(seed), target.words, target.max_bytes)
    coverage = LineCoverage() if is_guided else None
    population = list(target.corpus().values())
    untried = list(population)
    deadline = time.monotonic() + seconds
    data = b""
    while untried or time.monotonic() < deadline:
        data = untried.pop() if untried else mutator.mutate(population)
        report.run_count += 1
        try:
            if coverage is None:
                check_input(target, data)
            elif coverage.is_new(partial(check_input, target, data, factor=TRACED_FACTOR)):
                population.append(data)
                report.finds.append(data)
        except Exception as error:  # noqa: BLE001 - that is what we are looking for
            report.error = error
            break
    if report.error is not None:
        # Not in the handler, as the target shall not run while an exception is handled.
        report.failure = shrink(target, data, type(report.error))
        report.saved_as = save(target, report.failure)
    report.step_count = 0 if coverage is None else len(coverage.steps)
    return report


def shrink(target: Target, data: bytes, kind: type[Exception]) -> bytes:
    """Return a smaller input that fails in the same way."""
    deadline = time.monotonic() + MAX_SHRINK_S
    size = len(data) // 2
    while size and time.monotonic() < deadline:
        start = 0
        while start < len(data) and time.monotonic() < deadline:
            candidate = data[:start] + data[start + size :]
            if _fails(target, candidate, kind):
                data = candidate
            else:
                start += size
        size //= 2
    return data


def save(target: Target, data: bytes) -> Path:
    """Write a failing input where `make clean` finds it; return its path."""
    folder = FAILURES / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def _fails(target: Target, data: bytes, kind: type[Exception]) -> bool:
    try:
        check_input(target, data)
    except kind:
        return True
    except Exception:  # noqa: BLE001 - another failure, for another time
        return False
    return False


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
