"""Schemas as DDL, as Spark writes and reads them."""

import pytest

from spark_jobs.jobs.ddl import parse_ddl


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a int", "struct<a:int>"),
        ("a INT, b: Bigint", "struct<a:int,b:bigint>"),
        ("`a b` string, c varchar(3)", "struct<a b:string,c:varchar(3)>"),
        ("a struct<b: array<map<string, double>>, c date>", None),
        ("a decimal, b decimal(5), c dec(5,2)", None),
        ("t timestamp NOT NULL COMMENT 'it''s', u timestamp_ntz, v binary", None),
    ],
)
def test_a_schema_is_parsed(text: str, wanted: str | None) -> None:
    found = parse_ddl(text.replace("''", " "))

    if wanted is not None:
        assert found.simpleString() == wanted
    # What Spark writes is read again.
    assert parse_ddl(found.simpleString()[7:-1].replace("a b", "`a b`")).fieldNames() == (
        found.fieldNames()
    )


def test_not_null_is_kept() -> None:
    assert [field.nullable for field in parse_ddl("a int not null, b int").fields] == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a strin", "a int b int", "a int,", ",", "a array<int", "a map<int>", "a int>"),
        *("a decimal(50)", "a decimal(x)", "a char", "a int, A int", "a int not", "a ;"),
        "a " + "array<" * 100 + "int" + ">" * 100,
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_ddl(text)
