"""Kills of a query and of its nsqd: every row once, or its loss is told (make stream-kills)."""

from pathlib import Path

import pytest

from tests.spark.stream_kills import play


@pytest.mark.parametrize("origin", ["backlog", "archive"])
def test_kills_of_driver_and_nsqd(origin: str, tmp_path: Path) -> None:
    play(tmp_path, kind="bare", origin=origin, kill_count=2, seed=len(origin))
