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


def test_names_of_checksum_files_are_those_of_segments_in_use() -> None:
    assert layout.find_checked_name("t:c.diskqueue.000012.crc") == "t:c.diskqueue.000012.dat"
    for name in (
        "t.diskqueue.000012.crc.bad",
        "t.diskqueue.000012.dat",
        "t.diskqueue.meta.dat",
        "t.diskqueue.12.crc",
    ):
        assert layout.find_checked_name(name) is None


@pytest.mark.parametrize(
    ("name", "any_segment", "is_other"),
    [
        ("t.diskqueue.000012.dat", ("t", 12), False),
        ("t.diskqueue.000012.dat.bad", ("t", 12), False),
        ("t.diskqueue.000012.dat.bad.1", ("t", 12), False),
        ("t.diskqueue.000012.crc", None, True),
        ("t.diskqueue.000012.crc.bad", None, True),
        ("t.diskqueue.meta.dat", None, True),
        ("t.diskqueue.finished", None, True),
        ("t.diskqueue.due", None, True),
        ("t.diskqueue.causes", None, True),
        ("t.diskqueue.generation", None, True),
        ("nsqd.dat", None, False),
    ],
)
def test_files_with_records_are_told_from_others(
    name: str, any_segment: tuple[str, int] | None, *, is_other: bool
) -> None:
    if any_segment is not None or "meta" not in name:
        assert layout.parse_any_segment_name(name) == any_segment
    assert layout.is_other_file(name) is is_other


def make_thing(path: Path, kind: str) -> None:
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to itself":
            path.symlink_to(path.name)
        case "link to nowhere":
            path.symlink_to("nowhere")
        case "link to a file":
            path.with_name("there").write_bytes(b"7 bytes")
            path.symlink_to("there")
        case "file":
            path.write_bytes(b"7 bytes")
        case _:
            assert kind == "nothing"


THINGS = ["directory", "pipe", "link to itself", "link to nowhere"]


@pytest.mark.parametrize("kind", [*THINGS, "file", "link to a file", "nothing"])
def test_only_files_have_a_size(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    make_thing(path, kind)

    assert layout.find_size(str(path)) == (7 if "file" in kind else None)
    assert layout.is_in_the_way(str(path)) is (kind in THINGS)


def test_a_path_that_cannot_be_looked_at_is_an_error_and_not_in_the_way(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 300))

    with pytest.raises(OSError, match="too long"):
        layout.find_size(path)
    assert not layout.is_in_the_way(path)


@pytest.mark.parametrize("kind", THINGS)
def test_metadata_that_is_no_file_is_corrupt(tmp_path: Path, kind: str) -> None:
    make_thing(Path(layout.metadata_path(str(tmp_path), "t")), kind)

    with pytest.raises(CorruptMetadataError, match="not a file"):
        layout.read_metadata(str(tmp_path), "t")


def test_metadata_that_is_made_between_two_looks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = layout.metadata_path(str(tmp_path), "t")
    real, is_first = os.open, True

    def open_late(*arguments: object) -> int:
        nonlocal is_first
        if is_first:
            is_first = False
            Path(path).write_text("1\n2,3\n4,5\n")
            raise FileNotFoundError
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_late)

    assert layout.read_metadata(str(tmp_path), "t") == layout.Metadata(1, 2, 3, 4, 5)


@pytest.mark.parametrize("number", [2**63 - 1, 2**63])
def test_numbers_of_metadata_have_a_bound(number: int) -> None:
    for place in range(5):
        numbers = [0] * 5
        numbers[place] = number
        text = b"%d\n%d,%d\n%d,%d\n" % tuple(numbers)
        if number <= layout.MAX_NUMBER:
            assert layout.format_metadata(layout.parse_metadata(text)) == text
        else:
            with pytest.raises(CorruptMetadataError, match="numbers that no queue has"):
                layout.parse_metadata(text)


def test_quarantine_names_are_counted_up(tmp_path: Path) -> None:
    path = str(tmp_path / "t.diskqueue.000000.dat")
    found = []
    for content in (b"a", b"b", b"c", b"d"):
        Path(path).write_bytes(content)
        Path(layout.checksum_path(path)).write_bytes(content * 2)
        found.append(layout.quarantine(path))

    assert found == [f"{path}.bad", f"{path}.bad.1", f"{path}.bad.2", f"{path}.bad.3"]
    assert [Path(each).read_bytes() for each in found] == [b"a", b"b", b"c", b"d"]
    checksums = [Path(layout.checksum_path(each)).read_bytes() for each in found]
    assert checksums == [b"aa", b"bb", b"cc", b"dd"]
    assert not os.path.lexists(path)
    assert not os.path.lexists(layout.checksum_path(path))


def test_a_damaged_segment_is_linked_once(tmp_path: Path) -> None:
    path = str(tmp_path / "t.diskqueue.000000.dat")
    Path(path).write_bytes(b"x")
    Path(layout.checksum_path(path)).write_bytes(b"y")

    assert not layout.has_quarantine_name(path)
    assert layout.link_quarantined(path)
    assert layout.has_quarantine_name(path)
    assert layout.link_quarantined(path)

    assert sorted(os.listdir(tmp_path)) == [
        *("t.diskqueue.000000.crc", "t.diskqueue.000000.crc.bad"),
        *("t.diskqueue.000000.dat", "t.diskqueue.000000.dat.bad"),
    ]
    Path(path).unlink()
    Path(path).write_bytes(b"another")
    assert layout.link_quarantined(path)
    assert "t.diskqueue.000000.dat.bad.1" in os.listdir(tmp_path)
    Path(path).unlink()
    assert not layout.link_quarantined(path)
