"""docs/contract/bounds.md says what the code does."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "contract" / "bounds.md"
ROW = re.compile(r"^\| .* \| ([0-9.,]+)(?: (KiB|MiB|s))? \| `([\w.]+)` \|$", re.MULTILINE)
UNITS = {"": 1, "s": 1, "KiB": 1024, "MiB": 1024 * 1024}
BOUNDS = [
    pytest.param(name, float(number.replace(",", "")) * UNITS[unit], id=name)
    for number, unit, name in ROW.findall(PAGE.read_text("utf-8"))
]


def look_up(name: str) -> float:
    """Return a constant, or the default of a dataclass's field."""
    owner, _, attribute = name.rpartition(".")
    outer, _, inner = owner.rpartition(".")
    if not inner[0].isupper():
        value = getattr(importlib.import_module(owner), attribute)
    else:
        fields = dataclasses.fields(getattr(importlib.import_module(outer), inner))
        value = next(field.default for field in fields if field.name == attribute)
    assert isinstance(value, int | float)
    return value


@pytest.mark.parametrize(("name", "bound"), BOUNDS)
def test_a_bound_is_what_the_page_says(name: str, bound: float) -> None:
    assert look_up(name) == bound


def test_every_row_of_the_page_is_compared() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]

    headings = [line for line in rows if line.startswith(("| what |", "| --- |"))]
    assert len(BOUNDS) == len(rows) - len(headings)
