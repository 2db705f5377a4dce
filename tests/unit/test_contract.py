"""Every promise that a test names is in docs/contract, and every promise there has one number."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "contract").glob("*.md"))
# The letters of the promises; UTF-8 and the like are other things.
NUMBER = re.compile(r"\b([WQDHSLNAO])-(\d+)\b")
RANGE = re.compile(r"\b([WQDHSLNAO])-(\d+) to \1-(\d+)\b")
DECLARED = re.compile(r"^- \*\*([WQDHSLNAO]-\d+)\*\* ", re.MULTILINE)


def read_declared() -> list[str]:
    return [name for page in PAGES for name in DECLARED.findall(page.read_text("utf-8"))]


def find_cited(text: str) -> set[str]:
    """Return the promises that a text names; of a range, the first and the last."""
    return {f"{letter}-{number}" for letter, number in NUMBER.findall(text)}


def read_cited() -> dict[str, set[str]]:
    cited: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        if path != Path(__file__):
            for name in find_cited(path.read_text("utf-8")):
                cited.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return cited


def test_every_promise_that_a_test_names_is_in_the_contract() -> None:
    declared = set(read_declared())

    assert {name: paths for name, paths in read_cited().items() if name not in declared} == {}


def test_no_number_is_given_twice() -> None:
    assert [name for name, count in Counter(read_declared()).items() if count > 1] == []


def test_every_promise_is_named_by_a_test() -> None:
    # Ranges name all that lies between.
    cited = set(read_cited())
    for path in (ROOT / "tests").rglob("*.py"):
        for letter, first, last in RANGE.findall(path.read_text("utf-8")):
            cited |= {f"{letter}-{number}" for number in range(int(first), int(last) + 1)}

    assert [name for name in read_declared() if name not in cited] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_the_contract_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_number_is_told_from_other_words() -> None:
    assert find_cited("W-84, UTF-8, AES-256, Q-7 improved (D-1 to D-3)") == {
        *("W-84", "Q-7", "D-1", "D-3")
    }
