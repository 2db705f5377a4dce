"""`make mutants`: draw mutants of the code by lot, and count those that the tests notice.

Mutants are made by cosmic-ray's operators, and by one of ours that deletes a statement. Each is put
into a copy of the tree, where the tests of its module run first, then those of its package, then
daemons over sockets; the first layer with a failing test has killed it. Not drawn, as no test could
tell or each would: annotations, assertions, zip's strict, slots, log lines, code that does not
compile.
"""

import argparse
import ast
import contextlib
import difflib
import itertools
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.operators.provider
import parso.python.tree
import parso.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.unit.test_mirror import ELSEWHERE, find_tests

ROOT = Path(__file__).parents[1]
# What is mutated, with the layers of tests that see it after those of the module itself.
DOORS = ("tests/unit/nsqd/protocol tests/unit/nsqd/tcp tests/unit/nsqd/http", "tests/wire")
LAYERS = {
    "diskqueue": ("tests/unit/diskqueue tests/unit/nsqd/broker", "tests/crash", "tests/wire"),
    "nsqd/broker": ("tests/unit/nsqd/broker", "tests/wire", "tests/crash"),
    "nsqd/protocol": DOORS,
    "nsqd/tcp": DOORS,
    "nsqd/http": DOORS,
    "nsqd/api": DOORS,
}
# The others of cosmic-ray differ from these by what any test of the line would see.
SWAPS = {
    *("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is"),
    *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Div_Mul", "Mod_FloorDiv"),
    *("LShift_RShift", "RShift_LShift", "BitAnd_BitOr", "Delete_Not", "USub_UAdd"),
}
OTHERS = {
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue"),
    *("ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer", "ZeroIterationForLoop"),
}
LAYER_TIMEOUT_S = 1200  # each test has its own, far shorter
MEMORY_BYTES = 8 << 30  # a mutant may allocate for ever


class DeleteStatement:
    """Replace a call, a store into an object, `x += y`, `del` or `raise` by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield where the statement stands, if it is one of these."""
        if node.type == "simple_stmt" and self._does_something(node.children[0]):
            function: Any = parso.tree.search_ancestor(node, "funcdef")
            if function is None or function.name.value != "__init__":  # each test would see it
                yield node.start_pos, node.children[0].end_pos

    def mutate(self, node: Any, _index: int) -> Any:
        """Replace the statement."""
        old = node.children[0]
        prefix = old.get_first_leaf().prefix
        node.children[0] = parso.python.tree.Keyword("pass", old.start_pos, prefix)
        return node

    @staticmethod
    def _does_something(statement: Any) -> bool:
        if statement.type == "expr_stmt":
            target, operator = statement.children[:2]
            return target.type == "atom_expr" or getattr(operator, "value", "=") != "="
        return statement.type in {"atom_expr", "await_expr", "del_stmt", "raise_stmt"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    operator: str
    occurrence: int

    def mutate(self, code: str) -> str | None:
        """Return the changed code, None if that does not compile or is the same."""
        mutated: str | None = mutate_code(code, OPERATORS[self.operator](), self.occurrence)
        if mutated is None or mutated == code:
            return None
        try:
            compile(mutated, self.module, "exec")
        except SyntaxError:
            return None
        return mutated


def _find_operators() -> dict[str, Any]:
    provider = cosmic_ray.operators.provider.OperatorProvider()
    names = [name for name in provider if name in OTHERS or name.partition("_")[2] in SWAPS]
    return {"DeleteStatement": DeleteStatement} | {name: provider[name] for name in names}


OPERATORS = _find_operators()


def draw(seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants of as many lines, drawn from all lines that have some."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for package in LAYERS:
        for path in sorted((ROOT / package).rglob("*.py")):
            for mutant in _find_mutants(path):
                lines.setdefault((mutant.module, mutant.line), []).append(mutant)
    lots = random.Random(seed)
    drawn: list[Mutant] = []
    for key in lots.sample(sorted(lines), len(lines)):
        mutants = lots.sample(lines[key], len(lines[key]))
        code = (ROOT / key[0]).read_text()
        drawn += itertools.islice((it for it in mutants if it.mutate(code) is not None), 1)
        if len(drawn) == count:
            break
    return drawn


def _find_mutants(path: Path) -> Iterator[Mutant]:
    code = path.read_text()
    left_out = list(_find_left_out(ast.parse(code)))
    nodes = list(ast_nodes(get_ast(code)))
    for name, operator in OPERATORS.items():
        places = itertools.chain.from_iterable(map(operator().mutation_positions, nodes))
        for occurrence, (start, _) in enumerate(places):
            if not any(begin <= start < end for begin, end in left_out):
                yield Mutant(str(path.relative_to(ROOT)), start[0], name, occurrence)


def _find_left_out(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(tree):
        part: Any = None
        match node:
            case ast.Assert():
                part = node
            case ast.Call() if ast.unparse(node.func).startswith("logger."):
                part = node
            case ast.keyword(arg="strict" | "slots"):
                part = node.value
            case ast.arg() | ast.AnnAssign():
                part = node.annotation
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                part = node.returns
            case _:
                pass
        if part is not None:
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def find_layers(module: str) -> list[list[str]]:
    """Return the tests of a module, the nearest first."""
    own = [str(path.relative_to(ROOT)) for path in find_tests(module)]
    if not own and module in ELSEWHERE:
        own = [f"tests/{ELSEWHERE[module]}"]
    package = next(name for name in LAYERS if module.startswith(f"{name}/"))
    return [own, *(layer.split() for layer in LAYERS[package])]


class Copy:
    """A copy of the tree, in which one mutant at a time is tested."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Copy the files that git has, and have the bytecode of all made once."""
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        )
        for name in listed.stdout.decode().split("\0")[:-1]:
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

    def test(self, mutant: Mutant) -> str:
        """Return what killed a mutant: the first of its tests that failed, "" if it is alive."""
        path = self._path / mutant.module
        code, stat = path.read_text(), path.stat()
        for layer in filter(None, find_layers(mutant.module)):
            path.write_text(mutant.mutate(code) or "")
            killer = self._find_failure(layer)
            if "::" in killer and not killer.startswith("tests/unit/"):
                # A daemon on a busy machine may have missed a test's patience.
                killer = self._find_failure([killer])
            path.write_text(code)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            if "::" in killer and self._find_failure([killer]):
                say(f"{killer} fails without a mutant, too, and kills none")
                return ""
            if killer:
                return killer
        return ""

    def _find_failure(self, tests: list[str]) -> str:
        # Bytecode is taken for current by size and second of the source, which mutants may share.
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "--tb=no"]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*command, *tests],
                cwd=self._path,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(LAYER_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return f"no end of {' '.join(tests)}"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if status == 0:
                return ""
            output.seek(0)
            for line in output:
                if line.startswith(("FAILED ", "ERROR ")):
                    return line.split(maxsplit=1)[1].partition(" - ")[0].strip()
            return f"status {status} of {' '.join(tests)}"


def main() -> int:
    """Test a sample, print each mutant and at last the diffs of those alive; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of a sample, to run again")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    drawn = dict(enumerate(draw(options.seed, options.sample)))
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
            copy = copies.get()
            killer = copy.test(chosen[number])
            copies.put(copy)
            if not killer:
                alive.append(chosen[number])
            it = chosen[number]
            say(f"{number:3} {it.module}:{it.line} {it.operator}: {killer or 'ALIVE'}")

        with ThreadPoolExecutor(options.jobs) as threads:
            list(threads.map(test, chosen))
    for mutant in alive:
        code = (ROOT / mutant.module).read_text()
        changed = (mutant.mutate(code) or "").splitlines()
        names = (mutant.module, f"{mutant.module} {mutant.operator}")
        say("\n".join(difflib.unified_diff(code.splitlines(), changed, *names, "", "", 2, "")))
    killed = len(chosen) - len(alive)
    say(f"seed {options.seed}: {killed} of {len(chosen)} killed, {killed / len(chosen):.1%}")
    return 0


def say(text: str) -> None:
    """Print at once: a sample takes an hour."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
