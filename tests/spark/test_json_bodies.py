"""Bodies as JSON: schemas that are given, inferred or no schemas; fields counted by Spark."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.jobs.json_bodies import (
    describe_fields,
    holds_all,
    infer_schema,
    parse_schema,
    split_fields,
    with_json,
)
from spark_jobs.session import JobError

BODIES = [
    '{"a": 1, "b": {"c": "x"}, "tags": ["p", "q"]}',
    '{"a": 2.5, "b": null}',
    '{"a": null, "tags": []}',
    '  {"a": 4}',
    "[1, 2]",
    "17",
    "null",
    "plain text",
    "{broken",
    "",
]


def test_a_schema_is_ddl_json_or_a_file(spark: SparkSession, tmp_path: Path) -> None:
    wanted = "struct<a:int,b:struct<c:string>>"
    as_ddl = parse_schema("a int, b struct<c: string>")
    file = tmp_path / "schema"
    file.write_text(as_ddl.json())

    assert spark is not None
    assert as_ddl.simpleString() == wanted
    assert parse_schema(as_ddl.json()).simpleString() == wanted
    assert parse_schema(str(file)).simpleString() == wanted


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("text", ["a b c", "int", '{"type": "struct"}', "{", '{"fields": 3}'])
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="not a schema"):
        parse_schema(text)


def test_a_body_that_is_no_object_is_null(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(each.encode(),) for each in BODIES], "body binary").coalesce(1)

    inferred = infer_schema(frame, 100)
    parsed = with_json(frame, schema=None, sample_rows=100)
    found = parsed.withColumn("is_whole", holds_all(parsed)).collect()

    assert inferred.simpleString() == "struct<a:double,b:struct<c:string>,tags:array<string>>"
    assert [row.json.a for row in found[:4]] == [1, 2.5, None, 4]
    assert [row.json for row in found[4:]] == [None] * 6
    assert [row.is_whole for row in found] == [True] * 4 + [False] * 6


def test_values_that_do_not_fit_are_null_and_told(spark: SparkSession) -> None:
    bodies = [
        '{"a": 1, "b": "x"}',
        '{"a": "no number", "b": "y"}',
        '{"c": 1}',
        '{"a": "no"}',
        '{"a": 1, "b": "x", "new": 5}',
        '{"a": 12345678901234567890}',
        '{"a": 1, "a": 1}',
        '{"b": "x", "a": null}',
    ]
    frame = spark.createDataFrame([(each.encode(),) for each in bodies], "body binary").coalesce(1)
    schema = "a int, b string"

    parsed = with_json(frame, schema=schema, sample_rows=1)
    found = parsed.withColumn("is_whole", holds_all(parsed)).collect()

    assert [row.json and tuple(row.json) for row in found[:4]] == [
        (1, "x"),
        (None, "y"),
        (None, None),
        None,
    ]
    assert [row.is_whole for row in found] == [True, *[False] * 6, True]


def test_without_objects_the_column_is_null(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"text",)], "body binary")

    [row] = with_json(frame, schema=None, sample_rows=10).collect()

    assert row.json is None


def test_fields_are_counted_per_topic(spark: SparkSession) -> None:
    rows = [("t", each.encode()) for each in BODIES]
    rows += [("u", json.dumps({"n": n % 4, "t": "x"}).encode()) for n in range(40)]
    sample = spark.createDataFrame(rows, "topic string, body binary")
    roots, fields = describe_fields(split_fields(sample))

    kinds = {(row.topic, row.type): row["count"] for row in roots.collect()}
    found = {(row.topic, row.path): row for row in fields.collect()}

    assert kinds == {
        ("t", "object"): 4,
        ("t", "array"): 1,
        ("t", "integer"): 1,
        ("t", "null"): 1,
        ("t", "not JSON"): 3,
        ("u", "object"): 40,
    }
    assert found["t", "a"].types == ["integer", "null", "number"]
    assert (found["t", "a"].present, found["t", "a"].nulls) == (4, 1)
    assert found["t", "tags[]"].present == 2
    assert found["u", "n"].cardinality == 4
    assert [(each.value, each["count"]) for each in found["u", "n"].top] == [
        (str(n), 10) for n in range(4)
    ]
    assert found["u", "t"].top[0].value == "x"
