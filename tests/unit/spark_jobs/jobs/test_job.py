"""Texts for people: counts, sizes, errors."""

from spark_jobs.jobs.job import format_bytes, plural, shorten_error


def test_counts_and_sizes_have_units() -> None:
    assert [plural(count, "row") for count in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    shown = [format_bytes(count) for count in (0, 999, 1500, 2.5e9, 7e15)]
    assert shown == ["0 B", "999 B", "1.5 kB", "2.5 GB", "7000.0 TB"]


def test_errors_lose_their_stacks() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "spark_jobs.read.scan.SegmentLostError: segment x was consumed\n"
        "\tat org.apache.spark.Error: no\n"
    )

    assert shorten_error(text) == "segment x was consumed"
    assert shorten_error("x: Error\nOSError: disk") == "OSError: disk"
    assert shorten_error("\n[PARSE] wrong\nat line 1") == "[PARSE] wrong"
