"""Ad-hoc SQL over queues: a view per topic, and `messages` for all of them.

    nsqd-spark sql /var/lib/nsqd "SELECT channel, count(*) FROM orders GROUP BY channel"
    spark-submit --py-files nsqd_spark.zip spark_jobs/jobs/sql.py DATA_DIR "SELECT ..."

A view has the columns of format nsq and `text`, the body as text; with --json also `json`, the
parsed body. A topic whose name is no identifier has a view with `_` for each illegal character.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from diskqueue.tools.plain_text import escape_bytes, escape_text
from spark_jobs.jobs.job import (
    Selection,
    add_source_arguments,
    check_output,
    first_line,
    parse_arguments,
    plural,
    run_job,
)
from spark_jobs.jobs.json_bodies import add_json_arguments, check_json_arguments, with_json
from spark_jobs.jobs.progress import Progress
from spark_jobs.read.columns import BAD_COLUMN, FLEET_COLUMNS, MESSAGE_COLUMNS
from spark_jobs.session import JobError, open_session

ALL_VIEW = "messages"
DAMAGE_VIEW = "corrupt_records"

_COUNT_ALL = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
# Words that use all columns of a table without naming them, as DESCRIBE or FROM without SELECT do.
_NEEDS_ALL = {"natural", "pivot", "unpivot"}
_DEFAULT_ROWS = 100
# How a cell begins that spreadsheets take for a formula, blanks before it included.
_FORMULA_BEGIN = r"^\s*[=+\-@\t\r]"


def view_names(topics: Iterable[str]) -> dict[str, str]:
    """Name the view of each topic; every name is an identifier and occurs once."""
    taken = {ALL_VIEW, DAMAGE_VIEW}
    views: dict[str, str] = {}
    for topic in topics:
        plain = re.sub(r"\W", "_", topic, flags=re.ASCII)
        name = plain if not plain[:1].isdigit() else f"t{plain}"
        candidate, number = name, 1
        while candidate.lower() in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        views[topic] = candidate
    return views


def needed_columns(
    query: str, *, includes_bad: bool, has_json: bool, is_fleet: bool = False
) -> list[str]:
    """Return the columns a query can need, judged by its words; Spark does not tell a source."""
    known = [*MESSAGE_COLUMNS, *(FLEET_COLUMNS if is_fleet else ())]
    known += [BAD_COLUMN] if includes_bad else []
    text = _COUNT_ALL.sub(" ", query)
    if "*" in text:
        return known
    words = _words(text)
    if "select" not in words or words & _NEEDS_ALL:
        return known
    if "text" in words or has_json:
        words.add("body")
    return [name for name in known if name in words] or ["offset"]


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"\w+", text)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this job."""
    add_source_arguments(parser)
    parser.add_argument("query", metavar="SQL", help="for example: SELECT count(*) FROM orders")
    add_json_arguments(parser)
    parser.add_argument(
        "--rows", type=int, default=_DEFAULT_ROWS, help="how many to print, default 100"
    )
    parser.add_argument("--output", metavar="DIR", help="write the result there instead")
    parser.add_argument("--format", choices=["csv", "parquet", "json"], default="csv")
    parser.add_argument(
        "--formula-safe",
        action="store_true",
        help="for csv: put ' before texts that a spreadsheet would take for a formula",
    )


def run(args: argparse.Namespace) -> None:
    """Run the query and show or write its result.

    Raises:
        JobError: the arguments or the query are wrong.
    """
    if args.rows < 0:
        raise JobError(f"--rows is at least 0, not {args.rows}")
    if not args.query.strip():
        raise JobError("the query is empty")
    check_json_arguments(args)
    if args.output:
        check_output(args, is_new=True)
    progress = Progress()
    selection = Selection(args)
    progress.step(f"reading {selection.describe()}")
    with (
        open_session("nsqd sql", master=args.master, memory=args.memory) as spark,
        progress.watching(spark),
    ):
        _create_views(spark, selection, args)
        try:
            result = spark.sql(args.query)
        except AnalysisException as error:
            raise JobError(_explain(error, selection)) from error
        if args.output:
            _write(result, args, progress)
        else:
            _show(result, args.rows, progress)


def _explain(error: AnalysisException, selection: Selection) -> str:
    """Add the views and columns there are: Spark names only those that the query mentions."""
    views = ", ".join([ALL_VIEW, DAMAGE_VIEW, *view_names(selection.topics).values()])
    more = FLEET_COLUMNS if selection.is_fleet else ()
    columns = ", ".join([*MESSAGE_COLUMNS, *more, "text"])
    return f"{first_line(error)} (views: {views}; columns: {columns}, and json with --json)"


def _create_views(spark: SparkSession, selection: Selection, args: argparse.Namespace) -> None:
    """Make the views that the query mentions: each costs a look at the directory.

    SHOW VIEWS mentions them all.
    """
    words = _words(args.query)
    is_every = args.query.split(None, 1)[:1] in (["show"], ["SHOW"])
    columns = ",".join(
        needed_columns(
            args.query,
            includes_bad=args.include_bad,
            has_json=args.json,
            is_fleet=selection.is_fleet,
        )
    )
    views = {view: topic for topic, view in view_names(selection.topics).items()}
    for view, topic in [(ALL_VIEW, args.topic or "*"), *views.items()]:
        if not is_every and view.lower() not in words:
            continue
        frame = selection.load(spark, topic=topic, columns=columns)
        if "body" in frame.columns:
            frame = frame.withColumn("text", F.col("body").cast("string"))
        if args.json:
            frame = with_json(frame, schema=args.json_schema, sample_rows=args.json_sample)
        frame.createOrReplaceTempView(view)
    if is_every or DAMAGE_VIEW in words:
        selection.load(spark, table=DAMAGE_VIEW).createOrReplaceTempView(DAMAGE_VIEW)


def collect_shown(frame: DataFrame, row_count: int) -> list[tuple[object, ...]]:
    """Collect the first rows; times as text, as Python would get them in its own time zone."""
    times = [name for name, kind in frame.dtypes if kind == "timestamp"]
    shown = frame.limit(row_count).withColumns({name: F.col(name).cast("string") for name in times})
    return [tuple(row) for row in shown.collect()]


def _show(result: DataFrame, row_count: int, progress: Progress) -> None:
    rows = collect_shown(result, row_count + 1)
    print(format_table(result.columns, rows[:row_count]))
    more = "; there are more, see --rows" if len(rows) > row_count else ""
    progress.step(f"{plural(min(len(rows), row_count), 'row')}{more}")


def _write(result: DataFrame, args: argparse.Namespace, progress: Progress) -> None:
    counted = Observation()
    frame = result.observe(counted, F.count(F.lit(1)).alias("rows"))
    if args.format == "csv":
        binary = [name for name, kind in frame.dtypes if kind == "binary"]
        frame = frame.withColumns({name: F.col(name).cast("string") for name in binary})
        if args.formula_safe:
            frame = without_formulas(frame)
    writer = frame.write.format(args.format)
    if args.format == "csv":
        writer = writer.option("header", "true")
    writer.save(args.output)
    progress.step(f"{plural(counted.get['rows'], 'row')} written to {args.output}")


def without_formulas(frame: DataFrame) -> DataFrame:
    """Put an apostrophe before each text that spreadsheets would run: bodies are of strangers."""
    texts = [name for name, kind in frame.dtypes if kind == "string"]
    return frame.withColumns({name: _without_formula(_quoted(name)) for name in texts})


def _without_formula(text: Column) -> Column:
    return F.when(text.rlike(_FORMULA_BEGIN), F.concat(F.lit("'"), text)).otherwise(text)


def _quoted(name: str) -> Column:
    """Return the column of that name, dots and all."""
    return F.col(f"`{name.replace('`', '``')}`")


def format_table(columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    """Write rows under the names of their columns, each as wide as it needs."""
    columns = list(map(escape_text, columns))
    cells = [[_format_cell(value) for value in row] for row in rows]
    widths = [
        max([len(name), *(len(row[index]) for row in cells)]) for index, name in enumerate(columns)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        for index in range(len(columns))
    ]

    def line(values: Sequence[str]) -> str:
        parts = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(values, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(columns), rule, *(line(row) for row in cells)])


def _format_cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return escape_bytes(bytes(value))
    return escape_text(str(value))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser("sql.py", description="SQL over the queues of nsqd.")
    add_arguments(parser)
    return run_job(run, parse_arguments(parser, argv))


if __name__ == "__main__":
    sys.exit(main())
