import logging
from pathlib import Path

import pytest

from nsqadmin.access.roles import Caller, Role
from nsqadmin.access.tokens import (
    ATTEMPT_WINDOW_S,
    MAX_ATTEMPTS,
    MAX_SESSIONS,
    SESSION_S,
    Attempts,
    Sessions,
    Tokens,
)
from nsqd.config.flags import OptionsError

ADA = Caller("ada", Role.ADMIN)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(path: Path, text: str, clock: Clock | None = None) -> Tokens:
    path.write_text(text)
    return Tokens(str(path), clock=clock or Clock())


def test_one_token_is_for_admins(tmp_path: Path) -> None:
    tokens = make(tmp_path / "t", "s3cret\n")

    assert tokens.find(b"s3cret") == Caller("admin", Role.ADMIN)
    assert tokens.find(b"s3cre") is None
    assert tokens.find(b"") is None


def test_lines_have_role_token_and_name(tmp_path: Path) -> None:
    tokens = make(tmp_path / "t", "# who\nadmin aaa ada\n\nviewer vvv eve\n")

    assert tokens.find(b"aaa") == ADA
    assert tokens.find(b"vvv") == Caller("eve", Role.VIEWER)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "king aaa ada\n", "admin aaa\nviewer b c\n", "admin a x\nviewer a y\n", "ü x"],
)
def test_a_wrong_file_is_refused_without_its_tokens_in_the_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        make(tmp_path / "t", text)

    assert "aaa" not in str(caught.value)


def test_a_changed_file_is_followed_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), tmp_path / "t"
    tokens = make(path, "admin aaa ada\n", clock)
    with caplog.at_level(logging.INFO):
        path.write_text("admin bbbb ada\n")
        assert tokens.find(b"aaa") == ADA  # looked at once a second
        clock.now += 2
        assert tokens.find(b"aaa") is None
        assert tokens.find(b"bbbb") == ADA
        path.write_text("nonsense here\n")
        clock.now += 2
        assert tokens.find(b"bbbb") == ADA
    assert "bbbb" not in caplog.text
    assert "keeping the old tokens" in caplog.text


class TestSessions:
    def test_a_session_ends_after_eight_hours_or_at_sign_out(self, tmp_path: Path) -> None:
        clock = Clock()
        sessions = Sessions(make(tmp_path / "t", "admin aaa ada\n", clock), clock=clock)
        one, two = sessions.open(b"aaa", ADA), sessions.open(b"aaa", ADA)

        assert sessions.find(one) == ADA
        sessions.close(one)
        assert sessions.find(one) is None
        clock.now += SESSION_S
        assert sessions.find(two) is None
        assert sessions.find("guess") is None

    @pytest.mark.parametrize("text", ["viewer aaa ada\n", "admin ccc ada\n"])
    def test_a_change_of_role_or_token_ends_it(self, tmp_path: Path, text: str) -> None:
        clock, path = Clock(), tmp_path / "t"
        sessions = Sessions(make(path, "admin aaa ada\nviewer bbb eve\n", clock), clock=clock)
        cookie = sessions.open(b"aaa", ADA)

        path.write_text(text)
        clock.now += 2

        assert sessions.find(cookie) is None

    def test_there_are_only_so_many(self, tmp_path: Path) -> None:
        sessions = Sessions(make(tmp_path / "t", "admin aaa ada\n"))
        cookies = [sessions.open(b"aaa", ADA) for _ in range(MAX_SESSIONS + 1)]

        assert sessions.find(cookies[0]) is None
        assert sessions.find(cookies[-1]) == ADA


class TestAttempts:
    def test_after_twenty_wrong_ones_an_address_is_blocked_for_a_minute(self) -> None:
        clock = Clock()
        attempts = Attempts(clock=clock)
        for _ in range(MAX_ATTEMPTS - 1):
            attempts.note_wrong("10.0.0.1")
        assert not attempts.is_blocked("10.0.0.1")

        attempts.note_wrong("10.0.0.1")

        assert attempts.is_blocked("10.0.0.1")
        assert not attempts.is_blocked("10.0.0.2")
        clock.now += ATTEMPT_WINDOW_S
        assert not attempts.is_blocked("10.0.0.1")

    def test_wrong_ones_now_and_then_do_not_block(self) -> None:
        clock = Clock()
        attempts = Attempts(clock=clock)
        for _ in range(3 * MAX_ATTEMPTS):
            attempts.note_wrong("10.0.0.1")
            clock.now += 10
        assert not attempts.is_blocked("10.0.0.1")
