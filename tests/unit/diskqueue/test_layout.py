"""Names and texts of files."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue import CorruptMetadataError, layout

pytestmark = pytest.mark.usefixtures("closes_files")

NUMBERS = st.integers(0, 2**62)


def test_names_of_files() -> None:
    """D-1, D-2."""
    assert layout.segment_path("d", "t", 0) == "d/t.diskqueue.000000.dat"
    assert layout.segment_path("d", "t:c", 1234567) == "d/t:c.diskqueue.1234567.dat"
    assert layout.metadata_path("d", "t") == "d/t.diskqueue.meta.dat"
    assert layout.finished_path("d", "t:c") == "d/t:c.diskqueue.finished"
    assert layout.due_path("d", "t:c") == "d/t:c.diskqueue.due"


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(-(2**62), 2**62))
def test_metadata_survives_its_text(a: int, b: int, c: int, d: int, depth: int) -> None:
    metadata = layout.Metadata(depth, a, b, c, d)
    text = layout.format_metadata(metadata)

    assert text == b"%d\n%d,%d\n%d,%d\n" % (depth, a, b, c, d)
    assert layout.parse_metadata(text) == metadata


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_an_error(text: bytes) -> None:
    """D-21."""
    try:
        metadata = layout.parse_metadata(text)
    except CorruptMetadataError:
        return
    assert metadata.read_file >= 0


def test_metadata_without_its_last_newline_is_read() -> None:
    assert layout.parse_metadata(b"6\n0,0\n0,192") == layout.Metadata(6, 0, 0, 0, 192)


@pytest.mark.parametrize(
    ("read", "write", "is_sane"),
    [
        ((0, 0), (0, 0), True),
        ((0, 9), (0, 9), True),
        ((0, 99), (1, 0), True),
        ((0, 10), (0, 9), False),
        ((2, 0), (1, 99), False),
    ],
)
def test_read_position_must_not_be_beyond_the_write_position(
    read: tuple[int, int],
    write: tuple[int, int],
    is_sane: bool,  # noqa: FBT001
) -> None:
    """D-22."""
    assert layout.Metadata(0, *read, *write).is_sane is is_sane


def test_queue_names_are_split_into_topic_and_channel() -> None:
    assert layout.split_queue_name("orders") == ("orders", None)
    assert layout.split_queue_name("orders:billing") == ("orders", "billing")
    assert layout.split_queue_name("t#ephemeral:c.1") == ("t#ephemeral", "c.1")
    assert layout.join_queue_name("orders", None) == "orders"
    assert layout.join_queue_name("t#ephemeral", "c.1") == "t#ephemeral:c.1"


def test_segment_names_are_recognised() -> None:
    assert layout.parse_segment_name("t:c.diskqueue.000012.dat") == ("t:c", 12)
    assert layout.parse_segment_name("...diskqueue.1000000.dat") == ("..", 1000000)
    for name in (
        "t.diskqueue.12.dat",
        "t.diskqueue.000012.dat.bad",
        "t.diskqueue.meta.dat",
        "t.diskqueue.000012.dat.salvaged",
        "t.diskqueue.0000012.dat",  # another spelling of 12, whose file has another name
        "t.diskqueue.\u0660\u0660\u0660\u0660\u0661\u0662.dat",  # 12 in Arabic digits
        "t.diskqueue.9999999999999999999.dat",  # more than any position
        "nsqd.dat",
    ):
        assert layout.parse_segment_name(name) is None


def test_queues_of_a_directory_are_listed(tmp_path: Path) -> None:
    """D-19: files that are set aside or half written are told apart."""
    for name, size in {
        "b.diskqueue.000001.dat": 5,
        "b.diskqueue.000000.dat": 3,
        "b.diskqueue.000002.dat.bad": 1,
        "b.diskqueue.000002.dat.bad.1": 1,
        "b.diskqueue.meta.dat": 9,
        "b.diskqueue.meta.dat.77.tmp": 2,
        "b.diskqueue.finished": 2,
        "b.diskqueue.finished.5.tmp": 2,
        "b.diskqueue.due": 2,
        "b:c.diskqueue.000000.dat": 4,
        "nsqd.dat": 7,
        "b.diskqueue.000003.dat.bad.salvaged": 7,
    }.items():
        (tmp_path / name).write_bytes(b"x" * size)

    queues = layout.list_queues(tmp_path)

    assert list(queues) == ["b", "b:c"]
    files = queues["b"]
    assert list(files.segments.items()) == [(0, 3), (1, 5)]
    assert files.has_metadata
    assert [os.path.basename(path) for path in files.bad_files] == [
        "b.diskqueue.000002.dat.bad",
        "b.diskqueue.000002.dat.bad.1",
    ]
    assert len(files.temporary_files) == 2
    assert files.has_finished
    assert files.has_due
    other = queues["b:c"]
    assert (other.has_metadata, other.has_finished, other.has_due) == (False, False, False)
    assert (other.has_causes, other.has_generation) == (False, False)
    assert layout.find_queue_files(str(tmp_path), "b").segments == files.segments


def test_file_written_atomically_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text("old and longer")

    layout.write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["nsqd.dat"]


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    layout.write_atomically("x.dat", b"1")

    assert (tmp_path / "x.dat").read_bytes() == b"1"


def test_failed_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(b"old")

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        layout.write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.dat"]
