"""The express of `nsq tail` against an nsqd that follows a script."""

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nsqd.cli.messages import express_tail
from nsqd.cli.messages.express_tail import ExpressTail
from nsqd.cli.output import ExitCode
from nsqd.client.address import Address
from tests.support.waiting import wait_until

WELCOME = b'{"max_rdy_count":100,"msg_timeout":60000,"auth_required":false}'


def frame(data: bytes, kind: int = 0) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def message(number: int, body: bytes) -> bytes:
    return frame(struct.pack(">qH16s", 1, 1, b"%016d" % number) + body, 2)


def named(verb: bytes, *numbers: int, end: bytes = b"") -> list[bytes]:
    return [b"%b %016d%b" % (verb, number, end) for number in numbers]


OK = frame(b"OK")
HEARTBEAT = frame(b"_heartbeat_")


class FakeNsqd:
    """Accepts one client; answers commands as the script says, and closes after CLS."""

    def __init__(self, script: dict[bytes, bytes | None], welcome: bytes = frame(WELCOME)) -> None:
        """Args: script: the answer to a command at its first time; None closes."""
        self.commands: list[bytes] = []
        self._script = {b"CLS": frame(b"CLOSE_WAIT"), **script}
        self._welcome = welcome
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "FakeNsqd":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as file, suppress(ConnectionError):
            file.read(4)
            while line := file.readline():
                command = line.rstrip(b"\n")
                if command == b"IDENTIFY":
                    file.read(int.from_bytes(file.read(4)))
                    connection.sendall(self._welcome)
                    continue
                self.commands.append(command)
                answer = self._script.pop(command, b"")
                if answer is None:
                    return
                connection.sendall(answer)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        for descriptor in (reading, writing):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def printed(output: int) -> bytes:
    return os.pread(output, 1 << 20, 0)


def test_messages_are_finished_after_they_are_printed(output: int) -> None:
    three = b"".join(message(number, b"body %d" % number) for number in range(3))
    with FakeNsqd({b"SUB t c": OK, b"RDY 3": three}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", count=3, stdout=output)
        assert tail.run() is ExitCode.DONE

    assert printed(output) == b"body 0\nbody 1\nbody 2\n"
    assert nsqd.commands == [b"SUB t c", b"RDY 3", b"RDY 0", *named(b"FIN", 0, 1, 2), b"CLS"]
    assert tail.shown == 3


def test_messages_too_many_go_back_also_after_the_end(output: int) -> None:
    four = b"".join(message(number, b"x") for number in range(4))
    late = message(9, b"late") + frame(b"CLOSE_WAIT")
    with FakeNsqd({b"RDY 2": four, b"CLS": late}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", count=2, end=b"\0", stdout=output)
        assert tail.run() is ExitCode.DONE

    assert printed(output) == b"x\0x\0"
    assert set(nsqd.commands) >= {*named(b"FIN", 0, 1), *named(b"REQ", 2, 3, 9, end=b" 0")}
    assert not set(nsqd.commands) & {*named(b"FIN", 2, 3, 9)}


def test_rdy_is_what_nsqd_allows_and_a_heartbeat_is_answered(output: int) -> None:
    with FakeNsqd({b"RDY 100": HEARTBEAT, b"NOP": message(1, b"x")}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", wait_s=0.2, stdout=output)
        assert tail.run() is ExitCode.DONE

    assert b"NOP" in nsqd.commands
    assert printed(output) == b"x\n"


def test_silence_ends_it_with_a_code_if_messages_are_missing(output: int) -> None:
    with FakeNsqd({}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", count=1, wait_s=0.1, stdout=output)
        assert tail.run() is ExitCode.TIMEOUT


@pytest.mark.parametrize(
    "answer",
    [
        frame(b"E_BAD_TOPIC SUB topic name", 1),
        None,  # nsqd closes
        b"\xff" * 8,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_others(output: int, answer: bytes | None) -> None:
    with FakeNsqd({b"RDY 100": message(1, b"x"), b"FIN %016d" % 1: answer}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", stdout=output)
        assert tail.run() is None

    assert tail.shown == 1
    assert printed(output) == b"x\n"


@pytest.mark.parametrize("welcome", [b'{"auth_required":true}', b"E_INVALID no", b"{no JSON"])
def test_a_peer_that_wants_more_is_left_to_others(output: int, welcome: bytes) -> None:
    with FakeNsqd({}, frame(welcome, 1 if welcome.startswith(b"E_") else 0)) as nsqd:
        assert ExpressTail(nsqd.address, "t", "c", stdout=output).run() is None

    assert nsqd.commands == []


def test_an_answer_that_came_too_late_changes_nothing(output: int) -> None:
    late = frame(b"E_FIN_FAILED FIN 0000 failed ID not in flight", 1) + message(2, b"two")
    with FakeNsqd({b"RDY 2": message(1, b"one"), b"FIN %016d" % 1: late}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", count=2, stdout=output)
        assert tail.run() is ExitCode.DONE

    assert printed(output) == b"one\ntwo\n"


def test_a_reader_that_has_gone_gets_the_messages_back() -> None:
    with pipe() as (reading, writing), FakeNsqd({b"RDY 100": message(1, b"x")}) as nsqd:
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            ExpressTail(nsqd.address, "t", "c", stdout=writing).run()

    assert nsqd.commands[2:] == [*named(b"REQ", 1, end=b" 0"), b"CLS"]


def test_a_reader_that_waits_gets_every_byte_and_nsqd_its_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(express_tail, "TICK_S", 0.01)
    body = b"y" * 300_000  # more than a pipe takes
    welcome = frame(WELCOME.replace(b"60000", b"200"))
    received = bytearray()
    with pipe() as (reading, writing), FakeNsqd({b"RDY 1": message(1, body)}, welcome) as nsqd:

        def read() -> None:
            wait_until(lambda: nsqd.commands.count(b"TOUCH %016d" % 1) >= 2)
            while len(received) <= len(body):
                received.extend(os.read(reading, 65536))

        reader = threading.Thread(target=read)
        reader.start()
        assert ExpressTail(nsqd.address, "t", "c", count=1, stdout=writing).run() is ExitCode.DONE
        reader.join()

    assert bytes(received) == body + b"\n"
    assert nsqd.commands[-2:] == [*named(b"FIN", 1), b"CLS"]


def test_a_line_that_was_begun_is_ended_before_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(express_tail, "TICK_S", 0.01)
    body = b"y" * 300_000
    welcome = frame(WELCOME.replace(b"60000", b"200"))
    script = {b"RDY 100": message(1, body), b"TOUCH %016d" % 1: None}
    received = bytearray()
    with pipe() as (reading, writing), FakeNsqd(script, welcome) as nsqd:

        def read() -> None:
            wait_until(lambda: b"TOUCH %016d" % 1 in nsqd.commands)  # nsqd closes now
            while len(received) <= len(body):
                received.extend(os.read(reading, 65536))

        reader = threading.Thread(target=read)
        reader.start()
        tail = ExpressTail(nsqd.address, "t", "c", stdout=writing)
        assert tail.run() is None
        reader.join()

    assert bytes(received) == body + b"\n"
    assert tail.shown == 1


@contextmanager
def signalled(tail: ExpressTail, number: signal.Signals) -> Iterator[None]:
    """A signal, as soon as a message is shown."""

    def send() -> None:
        wait_until(lambda: tail.shown == 1)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    sender.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_handlers_are_given_back(
    output: int, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with FakeNsqd({b"RDY 100": message(1, b"x")}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", stdout=output)
        with signalled(tail, number):
            assert tail.run() is ExitCode.DONE

    assert nsqd.commands[-1] == b"CLS"
    assert signal.getsignal(number) is before


def test_a_signal_asks_how_far_it_is(output: int, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeNsqd({b"RDY 100": message(1, b"x")}) as nsqd:
        tail = ExpressTail(nsqd.address, "t", "c", wait_s=0.6, stdout=output)
        with signalled(tail, signal.SIGUSR1):
            assert tail.run() is ExitCode.DONE

    assert "1 shown" in capsys.readouterr().err


def test_an_nsqd_that_is_not_there_is_left_to_others(output: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())

    assert ExpressTail(address, "t", "c", stdout=output).run() is None
