"""A job tells how far Spark is: lines for logs, a bar on a terminal."""

import sys
import threading
import time

import pytest
from pyspark.sql import SparkSession

from spark_jobs.jobs.progress import Progress, count_tasks


def test_tasks_are_counted_while_they_run(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress()

    with progress.watching(spark, interval_s=0.05):
        spark.sparkContext.parallelize(range(4), 4).foreach(lambda _: time.sleep(0.4))

    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.endswith(" of 4 tasks done") for line in lines)
    assert any(line.endswith(("] 0 of 4 tasks done", "] 2 of 4 tasks done")) for line in lines)
    assert count_tasks(spark.sparkContext.statusTracker()) == (0, 0)
    assert threading.active_count() < 20


def test_a_terminal_has_a_bar_below_the_lines(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress()

    with progress.watching(spark):
        progress.step("reading [bold]a\x1b]0;b[/bold]")
        spark.sparkContext.parallelize(range(4), 2).foreach(lambda _: time.sleep(0.4))
    progress.step("over")

    shown = capsys.readouterr().err
    assert r"s] reading [bold]a\x1b]0;b[/bold]" in shown
    assert "/2" in shown
    assert shown.endswith("s] over\n")
