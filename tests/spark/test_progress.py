"""A job tells how far Spark is, where no terminal shows it."""

import threading
import time

import pytest
from pyspark.sql import SparkSession

from spark_jobs.jobs.progress import Progress, describe_stages


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
    assert describe_stages(spark.sparkContext.statusTracker()) == ""
    assert threading.active_count() < 20
