"""Tables and text for people."""

import io

import pytest

from nsqd.cli import output


def test_a_table_is_aligned_and_plain_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "depth"), [("a", 1_234_567), ("longer\x1b", 8)])

    assert capsys.readouterr().out == (
        "name            depth\na           1,234,567\nlonger\\x1b          8\n"
    )


def test_tabs_have_no_separators_of_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    heads = ("name", "depth", "paused")
    output.print_table(heads, [("a\tb", 1234, False), ("c", 0, True)], is_tsv=True)

    shown = "name\tdepth\tpaused\na\\tb\t1234\tfalse\nc\t0\ttrue\n"
    assert capsys.readouterr().out == shown


def test_an_empty_table_has_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "depth"), [])

    assert capsys.readouterr().out == "name  depth\n"


def test_the_widest_texts_give_way_and_numbers_do_not() -> None:
    assert output.fit_widths([60, 40, 5], [8, 8, 5], 65) == [30, 30, 5]
    assert output.fit_widths([60, 10, 5], [8, 8, 5], 65) == [50, 10, 5]
    assert output.fit_widths([6, 4, 5], [6, 4, 5], 80) == [6, 4, 5]
    assert output.fit_widths([60, 40, 5], [8, 8, 5], 10) == [8, 8, 5]


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, pipe = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)

    assert output.has_colour(terminal)
    assert not output.has_colour(pipe)
    assert output.has_colour(pipe, "always")
    assert not output.has_colour(terminal, "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.has_colour(terminal)


def test_text_behind_a_label_is_wrapped_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "orders/billing: 50 messages and no consumer; a-very-long-name-is-not-broken"

    output.print_wrapped("problem  ", text)
    assert capsys.readouterr().out == f"problem  {text}\n"

    monkeypatch.setenv("COLUMNS", "41")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.print_wrapped("problem  ", text)
    assert capsys.readouterr().out == (
        "problem  orders/billing: 50 messages and\n"
        "         no consumer;\n"
        "         a-very-long-name-is-not-broken\n"
    )


def test_a_name_that_was_probably_meant() -> None:
    assert output.did_you_mean("ordres", ["orders", "mail"]) == "; did you mean orders?"
    known = ["orders/billing", "orders/mail", "others/biling"]
    assert output.did_you_mean("orders/biling", known) == "; did you mean orders/billing?"
    assert output.did_you_mean("orders/nope", known) == ""
    assert output.did_you_mean("other/mail", known) == ""


def test_what_is_cut_is_marked() -> None:
    assert output.cut("abcdef", 6) == "abcdef"
    assert output.cut("abcdefg", 6) == "abcde…"


def test_sizes_for_people() -> None:
    assert [output.show_bytes(size) for size in (0, 999, 1900, 2_500_000, 3 * 10**12)] == [
        "0 B",
        "999 B",
        "1.9 kB",
        "2.5 MB",
        "3.0 TB",
    ]
