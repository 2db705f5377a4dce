"""The mutants: changes of one line each, made by cosmic-ray's operators and one of ours.

Not drawn, as no test could tell or each would: annotations, assertions, zip's strict, a dataclass'
slots and a field's init, log lines, the bodies of protocols, code that does not compile, and what
`equivalents` says.
"""

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.operators.provider
import parso.python.tree
import parso.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutation.equivalents import find_looks_at_clocks, find_no_descriptors, find_quanta

ROOT = Path(__file__).parents[2]
PACKAGES = ("diskqueue", "nsqd/broker", "nsqd/protocol", "nsqd/tcp", "nsqd/http", "nsqd/api")
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


def draw(seed: int, count: int, within: Sequence[str] = PACKAGES) -> list[Mutant]:
    """Return `count` mutants of as many lines, drawn from all lines `within` that have some."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in find_modules(within):
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


def find_modules(within: Sequence[str]) -> list[Path]:
    """Return the modules of PACKAGES that are, or stand below, one of these paths.

    Raises:
        ValueError: if a path has none.
    """
    found: list[Path] = []
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    for name in within:
        below = [path for path in modules if path.is_relative_to(ROOT / name)]
        if not below:
            raise ValueError(f"no module with mutants in {name}")
        found += (path for path in below if path not in found)
    return found


def _find_mutants(path: Path) -> Iterator[Mutant]:
    code = path.read_text()
    tree = ast.parse(code)
    module = str(path.relative_to(ROOT))
    left_out = list(_find_left_out(tree))
    # By the beginning of the names of operators.
    equivalent = {
        "NumberReplacer": list(find_quanta(module, tree)),
        "ReplaceComparisonOperator": list(find_looks_at_clocks(tree)),
    }
    no_descriptors = list(find_no_descriptors(tree))
    nodes = list(ast_nodes(get_ast(code)))
    for name, operator in OPERATORS.items():
        places = itertools.chain.from_iterable(map(operator().mutation_positions, nodes))
        for occurrence, (start, _) in enumerate(places):
            spans = left_out + equivalent.get(name.partition("_")[0], [])
            if name == "NumberReplacer" and occurrence % 2 == 0:  # one more, the next is one less
                spans += no_descriptors
            if not any(begin <= start < end for begin, end in spans):
                yield Mutant(module, start[0], name, occurrence)


def _find_left_out(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(tree):
        part: Any = None
        match node:
            case ast.Assert():
                part = node
            case ast.Call(func=ast.Attribute(value=logger)) if ast.unparse(logger).endswith(
                "logger"
            ):
                part = node
            case ast.keyword(arg="strict" | "slots" | "init"):
                part = node.value
            case ast.ClassDef(bases=[ast.Name(id="Protocol")]):
                part = node  # it says what others do: nothing in it runs
            case ast.arg() | ast.AnnAssign():
                part = node.annotation
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                part = node.returns
            case _:
                pass
        if part is not None:
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)
