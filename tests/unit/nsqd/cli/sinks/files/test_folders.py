"""Files get free names, and are moved without overwriting anything."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from nsqd.cli.sinks.files.folders import Folders, remove_parts

NAME = "t<REV>.log"


def make(tmp_path: Path, *, has_work: bool = True, **options: int) -> Folders:
    work = tmp_path / "work" if has_work else tmp_path / "out"
    folders = Folders(str(tmp_path / "out"), str(work), **options)  # type: ignore[arg-type]
    folders.prepare()
    return folders


def test_the_first_free_revision_is_taken(tmp_path: Path) -> None:
    folders = make(tmp_path)
    (tmp_path / "out" / "t-000000.log").touch()
    (tmp_path / "work" / "t-000001.log").touch()

    file, rev = folders.open(NAME, 0)

    assert (file.path, rev) == (str(tmp_path / "work" / "t-000002.log"), 2)
    file.close()


def test_a_file_is_moved_and_never_over_another_one(tmp_path: Path) -> None:
    folders = make(tmp_path)
    file, rev = folders.open("a/b/" + NAME, 0)
    file.write([b"mine"])
    file.close()
    (tmp_path / "out" / "a" / "b").mkdir(parents=True)
    (tmp_path / "out" / "a" / "b" / "t-000000.log").write_bytes(b"theirs\n")

    path = folders.finish(file.path, "a/b/" + NAME, rev)

    assert path == str(tmp_path / "out" / "a" / "b" / "t-000001.log")
    assert Path(path).read_bytes() == b"mine\n"
    assert (tmp_path / "out" / "a" / "b" / "t-000000.log").read_bytes() == b"theirs\n"
    assert not os.path.exists(file.path)


def test_a_file_with_both_names_loses_one(tmp_path: Path) -> None:
    folders = make(tmp_path)
    file, rev = folders.open(NAME, 0)
    file.write([b"mine"])
    file.close()
    os.link(file.path, tmp_path / "out" / "t-000000.log")

    assert folders.finish(file.path, NAME, rev) == str(tmp_path / "out" / "t-000000.log")
    assert os.listdir(tmp_path / "work") == []


def test_between_two_file_systems_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(_source: str, _goal: str) -> NoReturn:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", link)
    folders = make(tmp_path)
    file, rev = folders.open(NAME, 0)
    file.write([b"mine"])
    file.close()
    (tmp_path / "out" / "t-000000.log").write_bytes(b"theirs\n")

    path = folders.finish(file.path, NAME, rev)

    assert Path(path).read_bytes() == b"mine\n"
    assert sorted(os.listdir(tmp_path / "out")) == ["t-000000.log", "t-000001.log"]
    assert os.listdir(tmp_path / "work") == []


def test_a_copy_that_fails_leaves_the_file_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(_source: str, _goal: str) -> NoReturn:
        raise OSError(errno.EXDEV, "another file system")

    def rename(_source: str, _goal: str) -> NoReturn:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "rename", rename)
    folders = make(tmp_path)
    file, rev = folders.open(NAME, 0)
    file.close()

    with pytest.raises(OSError, match="full"):
        folders.finish(file.path, NAME, rev)
    assert os.listdir(tmp_path / "out") == []
    assert os.path.exists(file.path)


def test_a_file_is_continued_only_if_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t.log").write_bytes(b"before\n")
    folders = make(tmp_path, has_work=False, is_appending=True)

    file, _ = folders.open("t.log", 0)
    file.write([b"after"])
    file.close()

    assert (tmp_path / "out" / "t.log").read_bytes() == b"before\nafter\n"
    with pytest.raises(FileExistsError):
        make(tmp_path, has_work=False).open("t.log", 0)


def test_a_file_that_is_too_large_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t-000000.log").write_bytes(b"x" * 11)
    folders = make(tmp_path, has_work=False, is_appending=True, max_bytes=10)

    file, rev = folders.open(NAME, 0)

    assert rev == 1
    file.close()


def test_copies_that_were_not_finished_go(tmp_path: Path) -> None:
    (tmp_path / "t.log.7.part").touch()
    (tmp_path / "t.log").touch()

    remove_parts(str(tmp_path))

    assert os.listdir(tmp_path) == ["t.log"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        Folders(str(tmp_path / "file" / "out"), str(tmp_path / "file" / "out")).prepare()
