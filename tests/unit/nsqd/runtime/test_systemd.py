"""sd_notify: the datagrams that systemd reads from its socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.runtime.systemd import ServiceManager
from tests.support.fake_loop import FakeLoop


class Manager:
    """A socket like that of systemd."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        texts = []
        while True:
            try:
                texts.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return texts

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "notify")
    return f"@nsqd-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    manager = Manager("\0" + address[1:] if address.startswith("@") else address)
    yield manager
    manager.close()


def test_ready_and_stopping_are_told(manager: Manager, address: str) -> None:
    service = ServiceManager(FakeLoop().as_loop(), {"NOTIFY_SOCKET": address})

    service.ready("serving")
    assert manager.received() == ["READY=1\nSTATUS=serving"]
    service.stopping("saving")

    assert manager.received() == ["STOPPING=1\nWATCHDOG_USEC=0\nSTATUS=saving"]


def test_the_loop_sends_two_signs_of_life_in_each_period(manager: Manager, address: str) -> None:
    loop = FakeLoop()
    environment = {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    service = ServiceManager(loop.as_loop(), environment)

    service.ready("serving")
    assert manager.received() == ["READY=1\nSTATUS=serving", "WATCHDOG=1"]
    loop.advance(14)
    assert manager.received() == []
    loop.advance(16)
    assert manager.received() == ["WATCHDOG=1"] * 2

    service.stopping("saving")
    loop.advance(100)
    assert len(manager.received()) == 1  # that it stops, and no more


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}],
)
def test_a_process_that_is_not_watched_sends_none(
    manager: Manager, address: str, watchdog: dict[str, str]
) -> None:
    loop = FakeLoop()
    service = ServiceManager(loop.as_loop(), {"NOTIFY_SOCKET": address, **watchdog})

    service.ready("serving")
    loop.advance(100)

    assert manager.received() == ["READY=1\nSTATUS=serving"]


def test_without_a_manager_nothing_is_sent() -> None:
    loop = FakeLoop()
    service = ServiceManager(loop.as_loop(), {"WATCHDOG_USEC": "1000000"})

    service.ready("serving")
    service.stopping("saving")

    assert loop.timer_count == 0


def test_a_manager_that_is_gone_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "gone")}

    ServiceManager(FakeLoop().as_loop(), environment).ready("serving")

    assert "failed to notify the service manager" in caplog.text
