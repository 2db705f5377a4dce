"""Files with one random name."""

from pathlib import Path

import pytest

from diskqueue.sidecars.identity import make_identity, read_identity, write_identity


def test_a_name_is_read_as_it_was_written(tmp_path: Path) -> None:
    name = make_identity()

    write_identity(tmp_path / "file", name)

    assert read_identity(tmp_path / "file") == name
    assert (tmp_path / "file").read_bytes() == name.encode() + b"\n"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_names_differ() -> None:
    assert len({make_identity() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text", [b"", b"x" * 33, b"ab" * 16, b"ab" * 16 + b"\n\n", b"AB" * 16 + b"\n"]
)
def test_another_text_is_no_name(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "file").write_bytes(text)

    assert read_identity(tmp_path / "file") is None


def test_no_file_and_a_directory_are_no_name(tmp_path: Path) -> None:
    assert read_identity(tmp_path / "file") is None
    assert read_identity(tmp_path) is None
