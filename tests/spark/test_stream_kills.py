"""Kills of a query and of its nsqd: every row once, or its loss is told (make stream-kills)."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.stream_kills import play
from tests.support.streams.campaign import StampedLines
from tests.support.waiting import wait_until


@pytest.mark.parametrize("origin", ["backlog", "archive"])
def test_kills_of_driver_and_nsqd(origin: str, tmp_path: Path) -> None:
    play(tmp_path, kind="bare", origin=origin, kill_count=2, seed=len(origin))


def test_a_warning_of_a_driver_that_is_killed_counts(tmp_path: Path) -> None:
    """It has its own time, so that it explains removals before it, and none after it."""
    code = "import sys, time; sys.stderr.write('queue b is gone\\n'); time.sleep(600)"
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-u", "-c", code], stderr=subprocess.PIPE) as driver:
        assert driver.stderr is not None
        errors = StampedLines(driver.stderr, tmp_path / "errors")
        wait_until(lambda: (tmp_path / "errors").exists() and (tmp_path / "errors").read_text())
        seen = time.monotonic()
        driver.kill()
        [(at, text)] = errors.lines()

    assert text == "queue b is gone"
    assert began < at < seen
