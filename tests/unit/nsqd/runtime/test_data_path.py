"""The data path: its content at the start, and how far its past reaches."""

import os
import time
from pathlib import Path

import pytest

from nsqd.runtime.data_path import ensure_node_id, list_data_path


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


def test_a_node_keeps_its_id(tmp_path: Path) -> None:
    node_id = ensure_node_id(tmp_path)

    assert ensure_node_id(tmp_path) == node_id == (tmp_path / "nsqd.node").read_text().strip()


def test_nodes_have_different_ids(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    assert ensure_node_id(tmp_path) != ensure_node_id(tmp_path / "other")


def test_a_file_that_is_no_id_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "nsqd.node").write_text("torn")

    node_id = ensure_node_id(tmp_path)

    assert ensure_node_id(tmp_path) == node_id


def test_without_room_the_id_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: object, name: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nsqd.runtime.data_path.write_identity", refuse)

    assert len(ensure_node_id(tmp_path)) == 32
    assert "No space left" in caplog.text
