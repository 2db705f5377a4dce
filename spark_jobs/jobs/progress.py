"""How far a job is, on stderr, also while Spark alone is at work.

Lines for logs; on a terminal, where rich is installed, Spark's tasks are a bar below the lines.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark import StatusTracker
from pyspark.sql import SparkSession

from diskqueue.tools.plain_text import escape_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_INTERVAL_S = 5.0
_BAR_INTERVAL_S = 0.25


class Progress:
    """The lines of one job, with the seconds since it began."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bar: Bar | None = None

    def step(self, text: str) -> None:
        """Print a line."""
        line = f"[{self.elapsed_s():6.1f} s] {escape_text(text)}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def elapsed_s(self) -> float:
        """Return the seconds since the job began."""
        return time.monotonic() - self._started

    @contextmanager
    def watching(self, spark: SparkSession, interval_s: float = _INTERVAL_S) -> Iterator[None]:
        """Show how many of Spark's tasks are done until the block ends: a line every few seconds.

        On a terminal it is a bar, drawn anew four times a second.
        """
        self._bar = make_bar()
        done = threading.Event()
        tracker = spark.sparkContext.statusTracker()
        every_s = interval_s if self._bar is None else _BAR_INTERVAL_S
        thread = threading.Thread(target=self._watch, args=(tracker, done, every_s))
        thread.start()
        try:
            with self._bar or nullcontext():
                yield
        finally:
            done.set()
            thread.join()
            self._bar = None

    def _watch(self, tracker: StatusTracker, done: threading.Event, interval_s: float) -> None:
        told = ""
        bar = self._bar
        task = None if bar is None else bar.add_task("Spark", total=None)
        while not done.wait(interval_s):
            try:
                finished, total = count_tasks(tracker)
            except (Py4JError, ConnectionError):
                return  # The JVM is gone; the job itself says why.
            if bar is not None and task is not None:
                bar.update(task, completed=finished, total=total or None)
                continue
            text = f"{finished:,} of {total:,} tasks done" if total else ""
            if text and text != told:
                self.step(text)
                told = text


def make_bar() -> "Bar | None":
    """Return a bar for a terminal; None for a log, or without rich."""
    if not sys.stderr.isatty():
        return None
    try:
        # Imported here: executors and logs need none of it.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
    except ModuleNotFoundError:
        return None
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def count_tasks(tracker: StatusTracker) -> tuple[int, int]:
    """Return how many tasks of the running stages are done, and how many there are."""
    total = finished = 0
    for stage_id in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(stage_id)
        if stage is not None:
            total += stage.numTasks
            finished += stage.numCompletedTasks
    return finished, total
