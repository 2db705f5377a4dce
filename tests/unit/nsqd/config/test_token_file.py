"""The token of a file: followed when the file changes, kept when the file is bad, never shown."""

import logging
import os
from pathlib import Path

import pytest

from nsqd.config.flags import OptionsError
from nsqd.config.token_file import TOKEN_CHECK_S, TokenFile


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(" open-sesame\n")
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(path: Path, clock: Clock) -> TokenFile:
    return TokenFile(str(path), flag="auth-token-file", clock=clock)


def test_only_the_token_matches(file: TokenFile) -> None:
    assert file.matches(b"open-sesame")
    assert not file.matches(b"")
    assert not file.matches(b"open-sesam\xc3\xa9")


def test_a_new_token_holds_soon(file: TokenFile, path: Path, clock: Clock) -> None:
    path.write_text("new-token")
    assert file.matches(b"open-sesame")

    clock.now += TOKEN_CHECK_S

    assert file.token == b"new-token"
    assert not file.matches(b"open-sesame")


def test_a_token_that_was_read_again_holds_at_once(file: TokenFile, path: Path) -> None:
    path.write_text("new-token")

    file.replace(file.read())

    assert file.token == b"new-token"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_broken_file_leaves_the_old_token(
    file: TokenFile, path: Path, clock: Clock, *, is_deleted: bool
) -> None:
    if is_deleted:
        path.unlink()
    else:
        path.write_text("")
    clock.now += TOKEN_CHECK_S

    assert file.matches(b"open-sesame")


@pytest.mark.parametrize("content", ["", " \n", "two tokens", "a\x00b", "\u00e9", "x" * 5000])
def test_a_file_without_a_token_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)

    with pytest.raises(OptionsError, match=r"--f .* does not hold one token"):
        TokenFile(str(path), flag="f")


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="failed to read --f"):
        TokenFile(str(tmp_path / "nope"), flag="f")


def test_nobody_waits_for_the_writer_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OptionsError, match="does not hold one token"):
        TokenFile(str(tmp_path / "pipe"), flag="f")


def test_the_token_is_shown_nowhere(
    file: TokenFile, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path.write_text("new-token")
    clock.now += TOKEN_CHECK_S
    assert file.token == b"new-token"
    file.replace(file.read())

    assert "token read again" in caplog.text
    assert "new-token" not in caplog.text + repr(file)
