"""The fields of JSON bodies: which there are, of which types, how often null, with which values.

Bodies are taken apart by Python in the executors (`take_apart`); counting is Spark's. A field is a
path such as `user.address.city`; `tags[]` are the elements of an array.
"""

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

ENTRY_SCHEMA = "topic string, path string, type string, value string"
ROOT = ""
NOT_JSON = "not JSON"

_ARROW = pa.schema([(name, pa.string()) for name in ("topic", "path", "type", "value")])
# Bounds, so that strange bodies cannot make a report endless.
_MAX_DEPTH = 6
_MAX_ENTRIES_PER_BODY = 500
_MAX_ELEMENTS = 20
_MAX_VALUE_CHARACTERS = 100
_TOP_VALUES = 5

_Entry = tuple[str, str, str | None]  # path, type, value


def take_apart(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From (topic, body) to a row per field, of `ENTRY_SCHEMA`."""
    for batch in batches:
        topics: list[str] = []
        entries: list[_Entry] = []
        for topic, body in zip(
            batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
        ):
            found = list(body_entries(body))
            entries += found
            topics += [topic] * len(found)
        columns = zip(*entries, strict=True) if entries else ((), (), ())
        arrays = [pa.array(column, pa.string()) for column in (topics, *columns)]
        yield pa.record_batch(arrays, schema=_ARROW)


def body_entries(body: bytes) -> Iterator[_Entry]:
    """The fields of one body, the root (path "") first."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        yield ROOT, NOT_JSON, None
        return
    entries: list[_Entry] = []
    _add_entries(entries, ROOT, value, 0)
    yield from entries[:_MAX_ENTRIES_PER_BODY]


def _add_entries(entries: list[_Entry], path: str, value: object, depth: int) -> None:
    if len(entries) >= _MAX_ENTRIES_PER_BODY:
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
            _add_entries(entries, child_path, child, depth + 1)


def _scalar(value: object) -> tuple[str, str | None]:
    """The type and the text of what is neither object nor array."""
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


def describe_fields(sample: DataFrame) -> tuple[DataFrame, DataFrame]:
    """What the JSON bodies of a sample (topic, body) look like.

    Returns:
        The types of whole bodies: topic, type, count. And the fields: topic, path, types, present
        (in how many places), nulls, cardinality (about), and top: values with their counts.
    """
    entries = sample.select("topic", "body").mapInArrow(take_apart, ENTRY_SCHEMA)
    roots = entries.where(F.col("path") == ROOT).groupBy("topic", "type").count()
    fields = entries.where(F.col("path") != ROOT)
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
