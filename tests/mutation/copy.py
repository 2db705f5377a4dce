"""A copy of the tree, in which mutants are tested one after the other."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.mutation import runner
from tests.mutation.mutants import ROOT, Mutant

LAYER_TIMEOUT_S = 1200  # each test has its own, far shorter
NO_END = "no end of "  # before the name of a test


def _find_compiled() -> Iterator[Path]:
    for package in ("diskqueue", "nsqd"):
        yield from (ROOT / package).rglob("_compiled*.so")


class Copy:
    """A copy of the tree, in which one mutant at a time is tested."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runner: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that runs the tests."""
        if self._runner is not None:
            self._runner.communicate()

    def fill(self) -> None:
        """Copy the files that git has, and have the bytecode of all made once.

        And the compiled loops, if they were built: the tests were traced with them, and one test
        fails without.
        """
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        )
        compiled = [str(path.relative_to(ROOT)) for path in _find_compiled()]
        for name in [*listed.stdout.decode().split("\0")[:-1], *compiled]:
            if (ROOT / name).is_file():
                (self._path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._path / name)
        collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/unit"]
        environment = os.environ | {"PYTHONPATH": str(self._path)}
        suites = ["tests/wire", "tests/crash"]
        subprocess.run(
            [*collect, *suites],
            cwd=self._path,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def test(self, mutant: Mutant, layers: list[list[str]]) -> str:
        """Return what killed a mutant: the first of its tests that failed, "" if it is alive.

        A test that fails without the mutant, too, kills none, and is left out from then on.
        """
        path = self._path / mutant.module
        code, stat = path.read_text(), path.stat()
        for layer in layers:
            tests = list(layer)
            while tests:
                path.write_text(mutant.mutate(code) or "")
                killer = self._find_failure(tests)
                name = killer.removeprefix(NO_END)
                if "::" in name and not killer.startswith("tests/unit/"):
                    # A daemon on a busy machine may have missed a test's patience.
                    killer = self._find_failure([name])
                path.write_text(code)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                if not killer:
                    break
                again = [name] if "::" in name else tests
                if killer.startswith("tests/unit/") or not self._find_failure(again):
                    return killer
                if name not in tests:
                    break
                tests = [it for it in tests if it != name]
        return ""

    def _find_failure(self, tests: list[str]) -> str:
        status, output = self._run(tests)
        if status == 0:
            return ""
        # A process that has not come to its end names no test but the one that it was at.
        name = f"{len(tests)} tests, first {tests[0]}"
        for line in output.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(maxsplit=1)[1].partition(" - ")[0].strip()
            if line.startswith(runner.RUNS):
                name = line.removeprefix(runner.RUNS)
        return f"{NO_END}{name}"

    def _run(self, tests: list[str]) -> tuple[int | None, str]:
        if self._runner is None:
            self._runner = self._start_runner()
        assert self._runner.stdin is not None
        assert self._runner.stdout is not None
        self._runner.stdin.write(json.dumps({"tests": tests, "timeout_s": LAYER_TIMEOUT_S}) + "\n")
        self._runner.stdin.flush()
        reply = json.loads(self._runner.stdout.readline())
        return reply["status"], reply["output"]

    def _start_runner(self) -> subprocess.Popen[str]:
        # Bytecode is taken for current by size and second of the source, which mutants may share.
        environment = {"PYTHONPATH": str(self._path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", runner.__name__],
            cwd=self._path,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
