import re
import runpy
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.tcp import auth_patterns
from nsqd.tcp.auth_patterns import MAX_INSTRUCTIONS, Pattern, PatternError

ATOMS = ["a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c_]", r"\w", r"\W", r"\d", "^", "$", r"\b"]


def expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "??"])
    return (
        st.lists(inner, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map("|".join).map("(?:{})".format)
        | st.builds("(?:{}){}".format, inner, repeats)
        | inner.map("({})".format)
    )


@given(
    st.recursive(st.sampled_from(ATOMS), expressions, max_leaves=8),
    st.lists(st.text(alphabet="abc_.-0", max_size=8), min_size=1, max_size=8),
)
def test_matches_what_python_matches_where_both_agree_on_the_syntax(
    text: str, names: list[str]
) -> None:
    pattern, reference = Pattern(text), re.compile(text)

    for name in names:
        assert pattern.matches(name) is (reference.search(name) is not None)


@given(st.text(alphabet=r"ab([{}])|*+?.^$\-:,0PQEpdz<i=!", max_size=20))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        pattern = Pattern(text)
    except PatternError:
        return

    assert pattern.matches("ab-0") in {True, False}


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("", ["", "orders"], []),
        (".*", ["", "orders"], []),
        ("order", ["order", "orders", "reorder"], ["ord", ""]),
        ("^order$", ["order"], ["orders", "reorder"]),
        (r"\Aorder\z", ["order"], ["orders", "reorder"]),
        ("^c$", ["c"], [""]),
        ("^$", [""], ["c"]),
        (r"\.", ["a.b"], ["ab"]),
        ("(?i)ORDER", ["order", "oRdEr"], ["ordes"]),
        ("(?i:O)rder", ["order", "Order"], ["ORDER"]),
        ("(?i)a(?-i)b", ["ab", "Ab"], ["aB"]),
        ("((?i)a)b", ["Ab"], ["AB"]),
        ("(?s).", ["a"], [""]),
        ("(?P<region>eu|us)-", ["eu-1", "us-1"], ["ap-1"]),
        ("(?<region>eu|us)-", ["eu-1"], ["ap-1"]),
        ("^[[:alpha:]]+$", ["abc"], ["ab1", ":"]),
        ("^[[:^alpha:]]+$", ["12-"], ["1a"]),
        ("^[^[:digit:]]+$", ["abc"], ["ab1"]),
        ("^[[:word:].]+$", ["a_1."], ["a-1"]),
        ("^[]a]$", ["a"], ["b"]),
        ("^[a-]$", ["a", "-"], ["b"]),
        ("^[-a]$", ["a", "-"], ["b"]),
        (r"^[\d.]+$", ["1.2"], ["a"]),
        (r"^[\x61-\x{63}]+$", ["abc"], ["d"]),
        (r"^\x61\141$", ["aa"], ["a"]),
        (r"^\pL+$", ["abc"], ["a1"]),
        (r"^\p{Lu}\P{Lu}$", ["Ab"], ["ab", "AB"]),
        (r"^\p{^Lu}$", ["a"], ["A"]),
        (r"^[\p{Nd}-]+$", ["1-2"], ["a"]),
        (r"^\p{Latin}+$", ["abc"], ["1"]),
        (r"^\p{Any}$", ["a", "-"], [""]),
        (r"^\Qa.b\E+$", ["a.b", "a.bb"], ["axb"]),
        (r"^\Qa.b", ["a.b"], ["axb"]),
        (r"\_\-\#", ["_-#"], ["_"]),
        ("^a{2,3}$", ["aa", "aaa"], ["a", "aaaa"]),
        ("^a{2}$", ["aa"], ["a", "aaa"]),
        ("^a{2,}$", ["aa", "aaaaa"], ["a"]),
        ("^(?:ab){0}$", [""], ["ab"]),
        ("a{,2}|{|x{a}", ["{"], ["a"]),
        ("^(a|)b$", ["ab", "b"], ["a"]),
        ("a||b", [""], []),
        ("^*a", ["ba"], [""]),
        (r"\bb\b", ["a-b", "b"], ["ab"]),
        (r"a\Bb", ["ab"], ["a-b"]),
        ("é", [], ["e", ""]),
        ("[é-ü]", [], ["e"]),
        ("^[^é]$", ["e"], [""]),
        (r"\s|\t|\x0a|[[:space:]]", [], ["a", "-"]),
        ("(?m)^a$", ["a"], ["ab"]),
        ("(?U)^a+$", ["aa"], ["ab"]),
        ("((){9}){9}a", ["a"], ["b"]),
    ],
)
def test_the_syntax_of_re2_is_understood(text: str, matching: list[str], other: list[str]) -> None:
    #
    pattern = Pattern(text)

    assert [name for name in matching if not pattern.matches(name)] == []
    assert [name for name in other if pattern.matches(name)] == []


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a)",
        "(a",
        "[",
        "[a",
        "[]",
        "[z-a]",
        r"[a-\d]",
        "[[:nope:]]",
        "*",
        "a|*",
        "(*)",
        "{2}",
        "(?i)*",
        "a**",
        "a+*",
        "a{2}{3}",
        "a++",
        "a{3,2}",
        "a{1001}",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?>a)",
        "(?P=name)",
        "(?#note)",
        "(?x)",
        "(?i",
        "(?i-)",
        r"(a)\1",
        r"\8",
        r"\q",
        r"\Z",
        r"\C",
        "\\",
        "[\\",
        r"\x",
        r"\xg0",
        r"\x{110000}",
        r"\p",
        r"\p{Nope}",
        "(a{1000}){1000}",
        "((((){1000}){1000}){1000}){1000}",
        "a" * 10_001,
        r"\pL{1000}",
        r"a\C",
        r"\\\C",
        r"\Qa\E\C",
    ],
)
def test_what_re2_does_not_compile_is_refused(text: str) -> None:
    #
    with pytest.raises(PatternError):
        Pattern(text)


def test_a_huge_pattern_is_given_up_before_it_is_compiled_whole() -> None:
    with pytest.raises(PatternError, match="compile failed"):
        Pattern(r"\pL{100}")


@pytest.mark.parametrize(
    "text", [r"^([a-z]+\.?)+$", "^(a|aa)+$", "^(.*)*$b", "(a?){30}a{31}$", "(x+x+)+y"]
)
def test_patterns_that_make_others_backtrack_end_at_once(text: str) -> None:
    # Exponential time would be 2**60 steps; the suite's timeout fails this then.
    assert not Pattern(text).matches("a" * 30 + "x" * 33 + "-")


@pytest.mark.parametrize("text", [r"\\C", r"\Q\C\E", r"\Q\C", "[C]"])
def test_a_c_that_is_no_escape_is_a_letter(text: str) -> None:
    assert Pattern(text).matches("C" if text == "[C]" else r"\C")


@pytest.mark.parametrize("text", ["(" * 101 + ")" * 101, "a" * 9_990, "\ud800", "a\0b"])
def test_what_go_compiles_is_compiled(text: str) -> None:
    assert Pattern(text).instruction_count <= MAX_INSTRUCTIONS


def test_nothing_repeated_without_end_ends() -> None:
    assert Pattern("(a*)*b").matches("aab")
    assert not Pattern("((a*)+)*b$").matches("aac")


def test_a_pattern_shows_its_text() -> None:
    assert repr(Pattern("^a$")) == "Pattern('^a$')"


def test_the_module_loads_where_re2_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)

    assert runpy.run_path(auth_patterns.__file__)["re2"] is None
