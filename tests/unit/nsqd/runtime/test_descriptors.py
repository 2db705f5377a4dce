"""Descriptors: the last ones are kept, and a lack of them is said once a minute."""

import errno
import logging
import os
from typing import Any

import pytest

from nsqd.runtime.descriptors import LOG_INTERVAL_S, LOOK_INTERVAL_S, Descriptors
from tests.support.fake_loop import FakeLoop

TOO_MANY = OSError(errno.EMFILE, "Too many open files")


class Socket:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


class Transport:
    def __init__(self, number: int) -> None:
        self._socket = Socket(number)

    def get_extra_info(self, name: str) -> Socket:
        assert name == "socket"
        return self._socket


class Rig:
    def __init__(self, limit: int = 100) -> None:
        self.loop = FakeLoop()
        self.now = 0.0
        self.descriptors = Descriptors(self.loop.as_loop(), limit=limit, clock=lambda: self.now)

    def is_scarce(self, number: int, reserve_count: int = 10) -> bool:
        transport: Any = Transport(number)
        return self.descriptors.is_scarce(transport, reserve_count)


def test_the_last_descriptors_are_refused_to_a_door() -> None:
    rig = Rig(limit=100)

    assert [rig.is_scarce(number) for number in (3, 89, 90, 99)] == [False, False, True, True]


def test_a_process_with_very_few_serves_with_three_quarters_of_them() -> None:
    rig = Rig(limit=16)

    assert [rig.is_scarce(number, 32) for number in (11, 12)] == [False, True]


def test_a_lack_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert rig.is_scarce(99)
            assert rig.descriptors.note_accept_error(TOO_MANY)
        assert len(caplog.records) == 1
        assert "raise the limit of open files" in caplog.text

        rig.now = LOG_INTERVAL_S
        rig.is_scarce(99)
        rig.is_scarce(99)

    assert len(caplog.records) == 2
    assert rig.descriptors.error_count == 3


def test_other_errors_of_sockets_are_left_to_the_caller() -> None:
    rig = Rig()

    assert not rig.descriptors.note_accept_error(OSError(errno.ECONNABORTED, "aborted"))
    assert rig.descriptors.error_count == 0


def test_the_kept_descriptor_is_given_away_when_there_are_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    opened: list[int] = []
    closed: list[int] = []
    free = [7, 8]

    def open_file(_path: str, _flags: int) -> int:
        if not free:
            raise TOO_MANY
        opened.append(free.pop(0))
        return opened[-1]

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "close", closed.append)

    rig.descriptors.start()
    assert (opened, closed) == ([7], [])
    rig.loop.advance(LOOK_INTERVAL_S)  # there is another one: it is not needed
    assert (opened, closed) == ([7, 8], [8])
    rig.loop.advance(LOOK_INTERVAL_S)  # there is none: the next accept gets the kept one
    assert closed == [8, 7]
    assert rig.descriptors.error_count == 1

    free.append(9)
    rig.loop.advance(LOOK_INTERVAL_S)
    rig.descriptors.stop()
    assert opened == [7, 8, 9]
    assert closed == [8, 7, 9]
