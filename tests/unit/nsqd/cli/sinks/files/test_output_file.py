"""One file: what is in it, and what is left of it after a failure."""

import fcntl
import gzip
import os
from pathlib import Path

import pytest

from nsqd.cli.sinks.files.output_file import OutputFile


def make(path: Path, level: int | None = None) -> OutputFile:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return OutputFile(fd, str(path), gzip_level=level, directories=[str(path.parent)])


def test_messages_are_lines(tmp_path: Path) -> None:
    file = make(tmp_path / "f")

    file.write([b"one", b"two"])
    file.sync(file.end)
    file.write([b"three"])

    assert (tmp_path / "f").read_bytes() == b"one\ntwo\nthree\n"
    assert (file.synced_end, file.end, file.body_bytes) == (8, 14, 14)
    file.close()


def test_each_end_of_a_member_can_be_read(tmp_path: Path) -> None:
    file = make(tmp_path / "f", 6)
    file.write([b"one"])
    file.end_member()
    first = (tmp_path / "f").read_bytes()
    file.end_member()  # nothing since: no empty member
    file.write([b"two"])
    file.end_member()

    assert gzip.decompress(first) == b"one\n"
    assert gzip.decompress((tmp_path / "f").read_bytes()) == b"one\ntwo\n"
    assert file.body_bytes == 8
    file.close()


@pytest.mark.parametrize("level", [None, 6])
def test_what_is_not_certain_is_cut_off(tmp_path: Path, level: int | None) -> None:
    file = make(tmp_path / "f", level)
    file.write([b"certain"])
    file.end_member()
    file.sync(file.end)
    file.write([os.urandom(100_000)])

    file.cut_back()
    file.write([b"later"])
    file.end_member()
    file.close()

    data = (tmp_path / "f").read_bytes()
    assert (data if level is None else gzip.decompress(data)) == b"certain\nlater\n"


def test_a_file_of_several_processes_is_not_cut(tmp_path: Path) -> None:
    mine, other = make(tmp_path / "f"), make(tmp_path / "f")
    other.write([b"theirs"])
    mine.write([b"mine"])

    mine.cut_back()
    mine.write([b"again"])

    # The line that may be torn ends before the next.
    assert (tmp_path / "f").read_bytes() == b"theirs\nmine\n\nagain\n"
    mine.close()
    other.close()


def test_a_torn_last_line_is_ended_first(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"whole\nto")
    file = make(tmp_path / "f")

    file.write([b"next"])
    file.write([b"more"])

    assert (tmp_path / "f").read_bytes() == b"whole\nto\nnext\nmore\n"
    file.close()


def test_the_directory_is_synced_once_and_after_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    file = make(tmp_path / "f")
    for body in (b"1", b"2"):
        file.write([body])
        file.sync(file.end)

    assert synced == [False, True, False]
    file.close()
