"""Which tests reach a line, seen by coverage: no other test can notice a mutant of it.

The unit and wire tests run once under coverage. Daemons that tests start as processes are not seen;
the files of tests that do so are run for lines that no other wire test reaches.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import coverage

from tests.mutation import reach_plugin
from tests.mutation.mutants import PACKAGES, ROOT
from tests.unit.test_mirror import ELSEWHERE, find_tests

FOLDER = ROOT / "build" / "reach"
UNIT = [
    *(f"tests/unit/{package}" for package in PACKAGES),
    *("tests/unit/lookupd", "tests/unit/nsqd/lookup", "tests/unit/nsqd/stats"),
]
SUITES = {"unit": UNIT, "wire": ["tests/wire"]}
# Tracing changes what reference counting leaves behind.
NOT_TRACED = ("tests/wire/test_reference_cycles.py",)
GATES = ("tests/unit/test_bounds.py", "tests/unit/test_values.py")
CONFIGURATION = """\
[run]
source = nsqd, diskqueue
data_file = {data}
disable_warnings = module-not-imported, no-data-collected, trace-changed
"""
WITHIN_DAEMONS = ("daemon_process", "cluster")


class Reach:
    """What the last trace of the tests saw."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._data = coverage.CoverageData(str(folder / "data"))
        self._data.read()
        self._traced = (folder / "data").stat().st_mtime
        self._durations: dict[str, float] = {}
        for suite in SUITES:
            self._durations |= json.loads((folder / f"{suite}.json").read_text())
        self._processes = [*NOT_TRACED, *_find_process_tests()]

    def find_layers(
        self, module: str, line: int, *, are_units_all: bool = False
    ) -> list[list[str]]:
        """Return the tests that reach a line: those of its module, others of units, wire tests.

        A line that no wire test reaches may be one of the start or the end of a process: the tests
        that start processes are the last layer then. Within a layer the quickest is the first.
        """
        tests = self._find_tests(module, line) & {*self._durations, *GATES}
        own_files = {str(path.relative_to(ROOT)) for path in find_tests(module)}
        if module in ELSEWHERE:
            own_files.add(f"tests/{ELSEWHERE[module]}")
        # An own file that is newer than the trace runs whole.
        own = [path for path in own_files if (ROOT / path).stat().st_mtime > self._traced]
        units: list[str] = []
        wires: list[str] = []
        for test in sorted(tests, key=lambda test: self._durations.get(test, 0.0)):
            path = test.partition("::")[0]
            if path in own_files:
                own += () if path in own else (test,)
            else:
                (units if path.startswith("tests/unit/") else wires).append(test)
        layers = (own, units) if are_units_all else (own, units, wires or self._processes)
        return [layer for layer in layers if layer]

    def _find_tests(self, module: str, line: int) -> set[str]:
        path = ROOT / module
        contexts = self._data.contexts_by_lineno(str(path))
        tree = ast.parse(path.read_text())
        first, last = _find_statement(tree, line)
        tests = {it for number in range(first, last + 1) for it in contexts.get(number, []) if it}
        if (not tests or not _is_in_function(tree, line)) and any(
            contexts.get(number) for number in range(first, last + 1)
        ):
            # It ran when the module was imported, by whichever test was the first to do so: all
            # that use the module may see it, and those that look at the modules themselves.
            tests = {it for reached in contexts.values() for it in reached if it} | {*GATES}
            if tests == {*GATES}:
                package = next(name for name in PACKAGES if module.startswith(f"{name}/"))
                tests |= {it for it in self._durations if it.startswith(f"tests/unit/{package}/")}
        return tests


def _is_in_function(tree: ast.Module, line: int) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(tree)
    )


def _find_statement(tree: ast.Module, line: int) -> tuple[int, int]:
    """Return the lines of the innermost statement at a line; of a compound one, its head.

    The head of a function has its defaults, which are seen wherever its body runs.
    """
    spans = [(end - first, first, end) for first, end in _find_spans(tree) if first <= line <= end]
    return min(spans)[1:] if spans else (line, line)


def _find_spans(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.excepthandler):
            end = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if body and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                end = max(node.lineno, body[0].lineno - 1)
            yield node.lineno, end


def _find_process_tests() -> Iterator[str]:
    for path in sorted((ROOT / "tests/wire").glob("test_*.py")):
        code = path.read_text()
        if any(f"tests.support.{module}" in code for module in WITHIN_DAEMONS):
            yield str(path.relative_to(ROOT))


def is_current() -> bool:
    """Whether no code and no test has changed since the tests were traced."""
    if not (FOLDER / "data").exists():
        return False
    traced = (FOLDER / "data").stat().st_mtime
    sources = [ROOT / "nsqd", ROOT / "diskqueue", *(ROOT / name for name in UNIT), ROOT / "tests"]
    return all(path.stat().st_mtime < traced for source in sources for path in source.rglob("*.py"))


def trace() -> None:
    """Run the tests under coverage, both suites at a time; those that fail then tell nothing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    running = [_start_trace(suite, tests) for suite, tests in SUITES.items()]
    for process in running:
        process.wait()
    data = coverage.CoverageData(str(FOLDER / "data"))
    data.erase()
    for suite in SUITES:
        part = coverage.CoverageData(str(FOLDER / f"data.{suite}"))
        part.read()
        data.update(part)
    data.close()


def _start_trace(suite: str, tests: list[str]) -> subprocess.Popen[bytes]:
    configuration = FOLDER / f"{suite}.ini"
    configuration.write_text(CONFIGURATION.format(data=FOLDER / f"data.{suite}"))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={configuration}", "-m", "pytest"]
    options = ["-q", "-p", "no:cacheprovider", "-p", reach_plugin.__name__]
    left_out = [f"--deselect={path}" for path in NOT_TRACED]
    return subprocess.Popen(
        [*command, *options, *left_out, *tests],
        cwd=ROOT,
        env=os.environ | {reach_plugin.DURATIONS_VARIABLE: str(FOLDER / f"{suite}.json")},
        stdout=subprocess.DEVNULL,
    )
