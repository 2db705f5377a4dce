"""Directories by path, glob, list and URI; names of files that nsqd would not make."""

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.read.files.catalog import find_queues
from spark_jobs.read.files.directory import Directory, OutputDirectory
from spark_jobs.read.options import ReadOptions
from tests.spark.data_dirs import messages, read_plainly, write_queue
from tests.spark.in_process import parse, read_rows


def test_directories_by_glob_list_and_uri(tmp_path: Path) -> None:
    for node in ("n1", "n2", "x1"):
        write_queue(tmp_path / node / "data", "t", [messages(0, 1)])

    globbed = find_queues(ReadOptions((f"{tmp_path}/n*/data",)))
    listed = find_queues(ReadOptions((f"{tmp_path}/n1/data", f"file://{tmp_path}/x1/data")))
    by_uri = find_queues(ReadOptions((f"file://{tmp_path}/n*/data/",)))
    chosen = find_queues(ReadOptions((f"{tmp_path}/{{n2,x*,missing}}/data",)))

    assert [queue.node for queue in globbed] == ["n1", "n2"]
    assert [queue.node for queue in chosen] == ["n2", "x1"]
    assert [queue.directory for queue in listed] == [
        f"{tmp_path}/n1/data",
        f"file://{tmp_path}/x1/data",
    ]
    assert [queue.directory for queue in by_uri] == [
        f"file://{tmp_path}/n1/data",
        f"file://{tmp_path}/n2/data",
    ]


def test_a_directory_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    write_queue(tmp_path / "a[1]", "t", [messages(0, 1)])

    [queue] = find_queues(parse(tmp_path / "a[1]"))

    assert queue.node == "a[1]"


@pytest.mark.parametrize("name", ["missing", "missing*", "{missing,gone}"])
def test_a_directory_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data directory") as caught:
        find_queues(parse(tmp_path / name))

    assert str(tmp_path / name) in str(caught.value)


def test_an_unknown_kind_of_storage() -> None:
    with pytest.raises(ValueError, match="cannot open weird://x/y"):
        find_queues(ReadOptions(("weird://x/y",)))


def test_a_directory_that_is_a_link(tmp_path: Path) -> None:
    write_queue(tmp_path / "real", "t", [messages(0, 3)])
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert read_rows(tmp_path / "link") == read_plainly(tmp_path / "real")


def test_files_whose_names_are_no_text_are_ignored(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 3)])
    strange = os.fsencode(tmp_path) + b"/\xff.diskqueue.000000.dat"
    with open(strange, "wb") as file:
        file.write(struct.pack(">i", 5))

    assert read_rows(tmp_path) == read_plainly(tmp_path)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_results_are_written_below_a_new_directory(scheme: str, tmp_path: Path) -> None:
    output = OutputDirectory(f"{scheme}{tmp_path}/new/result/")
    output.make()

    output.write("tables/a.txt", b"1")
    output.write("b.txt", b"2")

    assert (tmp_path / "new/result/tables/a.txt").read_bytes() == b"1"
    assert (tmp_path / "new/result/b.txt").read_bytes() == b"2"


def test_sizes_are_as_new_as_the_last_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that grew before its successor was listed is seen in full."""
    first, second = tmp_path / "t.diskqueue.000000.dat", tmp_path / "t.diskqueue.000001.dat"
    first.write_bytes(b"half")
    second.write_bytes(b"next")

    @contextlib.contextmanager
    def grow_while_listed(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real_scandir(path) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)

        def listing() -> Iterator[os.DirEntry[str]]:
            for entry in ordered:
                if entry.name == second.name:
                    first.write_bytes(b"half and the rest")
                yield entry

        yield listing()

    real_scandir = os.scandir
    monkeypatch.setattr(os, "scandir", grow_while_listed)

    sizes = Directory(os.fspath(tmp_path)).list_files()

    assert sizes == {first.name: len(b"half and the rest"), second.name: len(b"next")}
