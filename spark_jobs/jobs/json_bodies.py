"""Bodies as JSON: a column `json` with a schema, given or inferred, and a list of their fields.

For the list, Python takes bodies apart on the executors (`split_bodies`); counting is Spark's. A
field is a path such as `user.address.city`; `tags[]` are the elements of an array.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.jobs.ddl import parse_ddl
from spark_jobs.session import JobError

JSON_COLUMN = "json"
NOT_JSON = "not JSON"
_DEFAULT_SAMPLE_ROWS = 10_000
_OBJECT = r"^\s*\{"
_CORRUPT = "_corrupt_body"
_FIELD_SCHEMA = "topic string, path string, type string, value string"
_ROOT = ""

_ARROW = pa.schema([(name, pa.string()) for name in ("topic", "path", "type", "value")])
# Bounds, so that strange bodies cannot make a report endless.
_MAX_DEPTH = 6
_MAX_FIELDS_PER_BODY = 500
_MAX_ELEMENTS = 20
_MAX_VALUE_CHARACTERS = 100
_TOP_VALUES = 5

_Field = tuple[str, str, str | None]  # path, type, value


def add_json_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that ask for parsed bodies."""
    group = parser.add_argument_group("JSON bodies")
    group.add_argument("--json", action="store_true", help="parse bodies into a column json")
    group.add_argument(
        "--json-schema",
        metavar="DDL",
        help="its fields, as in 'user string, amount double', or a file with that or with a"
        " schema as JSON; without it, they are inferred",
    )
    group.add_argument(
        "--json-sample",
        type=int,
        metavar="ROWS",
        default=_DEFAULT_SAMPLE_ROWS,
        help="how many messages to infer from, default 10000",
    )


def check_json_arguments(args: argparse.Namespace) -> None:
    """Refuse arguments that make no sense, before Spark is started.

    Raises:
        JobError: the schema cannot be parsed, or the sample is empty.
    """
    if args.json_schema is not None:
        parse_schema(args.json_schema)
    if args.json_sample < 1:
        raise JobError(f"--json-sample is at least 1, not {args.json_sample}")


def with_json(
    frame: DataFrame, *, schema: str | None, sample_rows: int, sample: DataFrame | None = None
) -> DataFrame:
    """Add a column `json`: the body as a struct, null where it is no JSON object.

    Args:
        sample: where to infer the schema from, if not from the frame itself.

    Raises:
        JobError: the schema cannot be parsed.
    """
    column = json_column(sample or frame, schema=schema, sample_rows=sample_rows)
    return frame.withColumn(JSON_COLUMN, column)


def json_column(sample: DataFrame, *, schema: str | None, sample_rows: int) -> Column:
    """Return the body as a struct, null where it is no JSON object.

    Spark makes a struct of nulls of anything that is not JSON; only its column for corrupt records
    tells.

    Raises:
        JobError: the schema cannot be parsed.
    """
    fields = parse_schema(schema) if schema else infer_schema(sample, sample_rows)
    if not fields.fields:
        return F.lit(None).cast("string")
    text = F.col("body").cast("string")
    wanted = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(text, wanted, {"columnNameOfCorruptRecord": _CORRUPT})
    is_object = text.rlike(_OBJECT)
    is_whole = is_object & parsed[_CORRUPT].isNull()
    has_any = F.greatest(
        *(parsed[field.name].isNotNull() for field in fields.fields),
        F.lit(False),
    )
    return F.when(is_whole | (is_object & has_any), parsed.dropFields(_CORRUPT))


def holds_all(frame: DataFrame) -> Column:
    """Tell for each row whether `json` has all that `body` has, so that the body can be left out.

    Spark drops fields that the schema does not have, and rounds numbers that its type cannot hold;
    nothing of its own tells. So `json` is written as JSON again and compared, in Python.
    """
    if not isinstance(frame.schema[JSON_COLUMN].dataType, StructType):
        return F.lit(False)
    compare = F.udf(is_same_json, "boolean", useArrow=False)
    return F.coalesce(compare(F.col("body"), F.to_json(JSON_COLUMN)), F.lit(False))


def is_same_json(body: bytes | bytearray | None, text: str | None) -> bool:
    """Tell whether two texts are the same JSON value; null and an absent field are the same."""
    if body is None or text is None:
        return False
    try:
        values = [json.loads(each, object_pairs_hook=_unique) for each in (bytes(body), text)]
    except (ValueError, RecursionError):
        return False
    return _is_same(*values)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that occurs twice")
    return {name: value for name, value in found.items() if value is not None}


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _is_same(value, other[name]) for name, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other


def parse_schema(text: str) -> StructType:
    """Parse a schema as DDL or as JSON, or the file that has it; no Spark is needed for it.

    Raises:
        JobError: the text is neither.
    """
    path = Path(text)
    try:
        if len(text) < 4096 and path.is_file():
            text = path.read_text()
        if text.lstrip().startswith("{"):
            parsed = StructType.fromJson(json.loads(text))
        else:
            parsed = parse_ddl(text)
    except (PySparkException, ValueError, KeyError, TypeError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise JobError(f"not a schema: {text[:100]!r} ({reason})") from error
    if not parsed.fields:
        raise JobError(f"not a schema with fields: {text[:100]!r}")
    return parsed


def infer_schema(frame: DataFrame, sample_rows: int) -> StructType:
    """Infer the fields that the JSON objects among the first bodies have."""
    spark = frame.sparkSession
    bodies = frame.select(F.col("body").cast("string").alias("value")).limit(sample_rows)
    objects = bodies.where(F.col("value").rlike(_OBJECT))
    # A field that is not JSON would add a column of its own; such rows are null anyway.
    inferred = spark.read.option("mode", "DROPMALFORMED").json(objects.rdd.map(lambda row: row[0]))
    return inferred.schema


def split_fields(sample: DataFrame) -> DataFrame:
    """Return a row for each field of JSON in a sample with the columns topic and body."""
    return sample.select("topic", "body").mapInArrow(split_bodies, _FIELD_SCHEMA)


def describe_fields(entries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Describe the fields of a sample, as `split_fields` returns them.

    Returns:
        The types of whole bodies: topic, type, count. And the fields: topic, path, types, present
        (in how many places), nulls, cardinality (about), and top: values with their counts.
    """
    roots = entries.where(F.col("path") == _ROOT).groupBy("topic", "type").count()
    fields = entries.where(F.col("path") != _ROOT)
    described = fields.groupBy("topic", "path").agg(
        F.array_sort(F.collect_set("type")).alias("types"),
        F.count(F.lit(1)).alias("present"),
        F.count_if(F.col("type") == "null").alias("nulls"),
        F.approx_count_distinct("value").alias("cardinality"),
    )
    values = fields.where(F.col("value").isNotNull()).groupBy("topic", "path", "value").count()
    ranked = values.withColumn(
        "rank",
        F.row_number().over(
            Window.partitionBy("topic", "path").orderBy(F.desc("count"), F.asc("value"))
        ),
    )
    top = (
        ranked.where(F.col("rank") <= _TOP_VALUES)
        .groupBy("topic", "path")
        .agg(F.array_sort(F.collect_list(F.struct("rank", "value", "count"))).alias("top"))
    )
    return roots, described.join(top, ["topic", "path"], "left")


def split_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make rows of topic and body to rows of `_FIELD_SCHEMA`, on an executor."""
    for batch in batches:
        topics: list[str] = []
        entries: list[_Field] = []
        for topic, body in zip(
            batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
        ):
            found = list(body_fields(body))
            entries += found
            topics += [topic] * len(found)
        columns = zip(*entries, strict=True) if entries else ((), (), ())
        arrays = [pa.array(column, pa.string()) for column in (topics, *columns)]
        yield pa.record_batch(arrays, schema=_ARROW)


def body_fields(body: bytes) -> Iterator[_Field]:
    """Yield the fields of one body, the root (path "") first."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        yield _ROOT, NOT_JSON, None
        return
    entries: list[_Field] = []
    _add_fields(entries, _ROOT, value, 0)
    yield from entries[:_MAX_FIELDS_PER_BODY]


def _add_fields(entries: list[_Field], path: str, value: object, depth: int) -> None:
    if len(entries) >= _MAX_FIELDS_PER_BODY:
        return
    if isinstance(value, dict):
        entries.append((path, "object", None))
        children = [(f"{path}.{name}" if path else name, child) for name, child in value.items()]
    elif isinstance(value, list):
        entries.append((path, "array", None))
        children = [(f"{path}[]", child) for child in value[:_MAX_ELEMENTS]]
    else:
        entries.append((path, *_scalar(value)))
        return
    if depth < _MAX_DEPTH:
        for child_path, child in children:
            _add_fields(entries, child_path, child, depth + 1)


def _scalar(value: object) -> tuple[str, str | None]:
    """Return the type and the text of a value that is neither object nor array."""
    match value:
        case None:
            return "null", None
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return "integer", _shorten(str(value))
        case float():
            return "number", _shorten(repr(value))
        case _:
            return "string", _shorten(str(value))


def _shorten(text: str) -> str:
    # A lone surrogate is legal in JSON and cannot be stored.
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return text
    return text[: _MAX_VALUE_CHARACTERS - 1] + "…"
