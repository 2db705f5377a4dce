"""The data path: its content at the start, and how far its past reaches."""

import os
import time
from pathlib import Path

from nsqd.runtime.data_path import list_data_path


def test_newest_change_is_that_of_the_newest_file(tmp_path: Path) -> None:
    for name, seconds in (("old", 1_700_000_000), ("new", 1_800_000_000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))

    assert list_data_path(tmp_path).newest_change_ns == 1_800_000_000 * 10**9


def test_empty_path_has_no_past(tmp_path: Path) -> None:
    assert list_data_path(tmp_path).newest_change_ns == 0


def test_date_far_in_the_future_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    future = time.time() + 100 * 365 * 24 * 3600
    os.utime(tmp_path / "file", (future, future))

    assert list_data_path(tmp_path).newest_change_ns == 0


def test_history_that_is_kept_counts_too(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    segment = tmp_path / "archive" / "t.diskqueue.000000.dat"
    segment.write_text("")
    os.utime(segment, (1_800_000_000, 1_800_000_000))

    assert list_data_path(tmp_path).newest_change_ns == 1_800_000_000 * 10**9


def test_a_name_that_the_archive_has_too_hides_no_date(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    for directory, seconds in ((tmp_path, 1_800_000_000), (tmp_path / "archive", 1_700_000_000)):
        segment = directory / "t.diskqueue.000000.dat"
        segment.touch()
        os.utime(segment, (seconds, seconds))

    assert list_data_path(tmp_path).newest_change_ns == 1_800_000_000 * 10**9
