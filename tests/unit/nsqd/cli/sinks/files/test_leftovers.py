"""Files of a run that was killed: cut to whole records, moved, unless somebody writes to them."""

import gzip
import os
import random
from pathlib import Path

import pytest

from nsqd.cli.sinks.files.folders import Folders
from nsqd.cli.sinks.files.leftovers import adopt, find_gzip_end, find_line_end
from nsqd.cli.sinks.files.names import FileNames

NAMES = FileNames.make("<TOPIC><REV>.log", "t")


def make(tmp_path: Path, gzip_level: int | None = None) -> Folders:
    folders = Folders(str(tmp_path / "out"), str(tmp_path / "work"), gzip_level)
    folders.prepare()
    return folders


def test_a_leftover_is_cut_and_moved(tmp_path: Path) -> None:
    folders = make(tmp_path)
    (tmp_path / "work" / "t-000003.log").write_bytes(b"one\ntwo\nthr")
    (tmp_path / "work" / "t-000004.log").write_bytes(b"torn")
    (tmp_path / "work" / "other.log").write_bytes(b"torn")
    (tmp_path / "out" / "t-000003.log").write_bytes(b"before\n")

    moved = adopt(folders, NAMES.pattern)

    assert moved == [str(tmp_path / "out" / "t-000004.log")]
    assert Path(moved[0]).read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "out" / "t-000003.log").read_bytes() == b"before\n"
    assert os.listdir(tmp_path / "work") == ["other.log"]


def test_a_file_in_use_stays(tmp_path: Path) -> None:
    folders = make(tmp_path)
    file, _ = folders.open("t<REV>.log", 0)
    file.write([b"one"])

    assert adopt(folders, NAMES.pattern) == []

    assert os.path.exists(file.path)
    file.close()
    assert adopt(folders, NAMES.pattern) == [str(tmp_path / "out" / "t-000000.log")]


def test_without_a_work_directory_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "t-000000.log").write_bytes(b"torn")

    assert adopt(Folders(str(tmp_path), str(tmp_path)), NAMES.pattern) == []
    assert (tmp_path / "t-000000.log").read_bytes() == b"torn"


@pytest.mark.parametrize("chunk", [b"", b"x" * 300_000])
def test_the_end_of_the_last_line(tmp_path: Path, chunk: bytes) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\n" + chunk)
    fd = os.open(tmp_path / "f", os.O_RDONLY)

    assert find_line_end(fd) == 4
    os.close(fd)


def test_the_end_of_the_last_member_wherever_it_is_torn(tmp_path: Path) -> None:
    chance = random.Random(15)
    members = [gzip.compress(chance.randbytes(200) + b"\0" * 5_000_000), gzip.compress(b"two\n")]
    whole = b"".join(members)
    ends = [0, len(members[0]), len(whole)]
    cuts = {*ends, *(chance.randrange(len(whole)) for _ in range(20)), len(whole) - 1}
    for cut in sorted(cuts):
        (tmp_path / "f").write_bytes(whole[:cut])
        fd = os.open(tmp_path / "f", os.O_RDONLY)
        assert find_gzip_end(fd) == max(end for end in ends if end <= cut)
        os.close(fd)
    (tmp_path / "f").write_bytes(whole + b"\0" * 100)  # as a power cut may leave it
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert find_gzip_end(fd) == len(whole)
    os.close(fd)
