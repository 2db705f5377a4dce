"""Names of views, the columns a query needs, and printed tables."""

import pytest

from spark_jobs.jobs.sql import format_table, needed_columns, view_names


def test_every_topic_has_a_view_of_its_own() -> None:
    topics = ["orders", "Orders", "a.b", "a-b", "1st", "messages", "x#ephemeral"]

    assert view_names(topics) == {
        "orders": "orders",
        "Orders": "Orders_2",
        "a.b": "a_b",
        "a-b": "a_b_2",
        "1st": "t1st",
        "messages": "messages_2",
        "x#ephemeral": "x_ephemeral",
    }


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT count(*) FROM t", ["offset"]),
        ("SELECT COUNT( * ), max(Attempts) FROM t", ["attempts"]),
        ("SELECT id FROM t WHERE timestamp > now() - INTERVAL 1 HOUR", ["timestamp", "id"]),
        ("SELECT length(text) FROM t", ["body"]),
    ],
)
def test_only_columns_that_are_mentioned(query: str, columns: list[str]) -> None:
    assert needed_columns(query, includes_bad=False, has_json=False) == columns


@pytest.mark.parametrize(
    "query",
    [
        "DESCRIBE orders",
        "FROM orders |> LIMIT 1",
        "TABLE orders",
        "SELECT a.id FROM a NATURAL JOIN b",
        "SELECT * FROM orders PIVOT (count(id) FOR attempts IN (1, 2))",
    ],
)
def test_what_takes_all_columns_without_naming_them(query: str) -> None:
    assert len(needed_columns(query, includes_bad=False, has_json=False)) == 10


def test_a_star_is_everything() -> None:
    assert len(needed_columns("SELECT * FROM t", includes_bad=False, has_json=False)) == 10
    assert len(needed_columns("SELECT t.* FROM t", includes_bad=True, has_json=False)) == 11


def test_json_needs_the_body() -> None:
    query = "SELECT json.a FROM t"

    assert needed_columns(query, includes_bad=False, has_json=True) == ["body"]


def test_tables_line_up() -> None:
    table = format_table(["name", "n"], [("a", 1), ("bb\n", 100), (None, None), (b"\xff", 2)])

    assert table.splitlines() == [
        "name     n",
        "----  ----",
        "a        1",
        "bb\\n   100",
        "NULL  NULL",
        "\\xff     2",
    ]


def test_a_body_drives_no_terminal() -> None:
    table = format_table(["te\nxt"], [("\x1b[2J\u202e",), (b"a\rb\tc",)])

    assert table.splitlines() == [
        r"te\nxt",
        "-" * len(r"\x1b[2J\u202e"),
        r"\x1b[2J\u202e",
        r"a\rb\tc",
    ]
