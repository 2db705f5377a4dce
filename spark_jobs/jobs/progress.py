"""Lines on stderr that say how far a job is, also while Spark alone is at work."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark import StatusTracker
from pyspark.sql import SparkSession

from diskqueue.tools.plain_text import escape_text

_INTERVAL_S = 5.0


class Progress:
    """The lines of one job, with the seconds since it began."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        """Print a line."""
        print(f"[{self.elapsed_s():6.1f} s] {escape_text(text)}", file=sys.stderr, flush=True)

    def elapsed_s(self) -> float:
        """Return the seconds since the job began."""
        return time.monotonic() - self._started

    @contextmanager
    def watching(self, spark: SparkSession, interval_s: float = _INTERVAL_S) -> Iterator[None]:
        """Print every few seconds how many of Spark's tasks are done, until the block ends.

        On a terminal Spark draws a bar of its own, so this is for logs.
        """
        if sys.stderr.isatty():
            yield
            return
        done = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(spark.sparkContext.statusTracker(), done, interval_s)
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, tracker: StatusTracker, done: threading.Event, interval_s: float) -> None:
        told = ""
        while not done.wait(interval_s):
            try:
                text = describe_stages(tracker)
            except (Py4JError, ConnectionError):
                return  # The JVM is gone; the job itself says why.
            if text and text != told:
                self.step(text)
                told = text


def describe_stages(tracker: StatusTracker) -> str:
    """Say how far the running stages are; empty if none runs."""
    total = finished = 0
    for stage_id in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(stage_id)
        if stage is not None:
            total += stage.numTasks
            finished += stage.numCompletedTasks
    return f"{finished:,} of {total:,} tasks done" if total else ""
