"""Bodies as JSON: a column `json` with a schema that is given or inferred."""

import argparse
import json
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.session import JobError

JSON_COLUMN = "json"
_DEFAULT_SAMPLE_ROWS = 10_000
_OBJECT = r"^\s*\{"
_CORRUPT = "_corrupt_body"


def add_json_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that ask for parsed bodies."""
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


def with_json(frame: DataFrame, *, schema: str | None, sample_rows: int) -> DataFrame:
    """The frame with a column `json`: the body as a struct, null where it is no JSON object.

    Raises:
        JobError: the schema cannot be parsed.
    """
    parsed, _ = json_columns(frame, schema=schema, sample_rows=sample_rows)
    return frame.withColumn(JSON_COLUMN, parsed)


def json_columns(
    frame: DataFrame, *, schema: str | None, sample_rows: int
) -> tuple[Column, Column]:
    """The body as a struct, and whether that is the whole of it as far as the schema goes.

    Spark makes a struct of nulls of anything that is not JSON, and a null of a value that has
    another type than the schema says; only its column for corrupt records tells.

    Raises:
        JobError: the schema cannot be parsed.
    """
    fields = parse_schema(schema) if schema else infer_schema(frame, sample_rows)
    if not fields.fields:
        return F.lit(None).cast("string"), F.lit(False)
    text = F.col("body").cast("string")
    wanted = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(text, wanted, {"columnNameOfCorruptRecord": _CORRUPT})
    is_object = text.rlike(_OBJECT)
    is_whole = is_object & parsed[_CORRUPT].isNull()
    has_any = F.greatest(
        *(parsed[field.name].isNotNull() for field in fields.fields),
        F.lit(False),
    )
    shown = F.when(is_whole | (is_object & has_any), parsed.dropFields(_CORRUPT))
    return shown, is_whole


def parse_schema(text: str) -> StructType:
    """A schema as DDL or as JSON, or the file that has it.

    Raises:
        JobError: it is neither.
    """
    path = Path(text)
    try:
        if len(text) < 4096 and path.is_file():
            text = path.read_text()
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        parsed = StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise JobError(f"not a schema: {text[:100]!r} ({reason})") from error
    if not isinstance(parsed, StructType):
        raise JobError(f"not a schema with fields: {text[:100]!r}")
    return parsed


def infer_schema(frame: DataFrame, sample_rows: int) -> StructType:
    """The fields that the JSON objects among the first bodies have."""
    spark = frame.sparkSession
    bodies = frame.select(F.col("body").cast("string").alias("value")).limit(sample_rows)
    objects = bodies.where(F.col("value").rlike(_OBJECT))
    # A field that is not JSON would add a column of its own; such rows are null anyway.
    inferred = spark.read.option("mode", "DROPMALFORMED").json(objects.rdd.map(lambda row: row[0]))
    return inferred.schema
