"""The express of `nsq pub` against an nsqd that follows a script."""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

import pytest

from nsqd.cli.messages.express_pub import ExpressPub
from nsqd.cli.messages.pieces import Splitter
from nsqd.cli.messages.tally import Tally
from nsqd.client.address import Address
from nsqd.client.errors import PublishTimeoutError

WELCOME = b'{"max_rdy_count":2500,"auth_required":false}'


def frame(data: bytes, kind: int = 0) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


OK = frame(b"OK")
ERROR = frame(b"E_MPUB_FAILED MPUB failed", 1)
HEARTBEAT = frame(b"_heartbeat_")
RESET = b"reset"  # of the connection, instead of an answer


class FakeNsqd:
    """Accepts one client; answers its commands as the script says, in order."""

    def __init__(self, *script: bytes | None, welcome: bytes = frame(WELCOME)) -> None:
        """Args: script: an answer for each publish; None closes; at its end the client waits."""
        self.published: list[bytes] = []  # the command and its body
        self.nop_count = 0
        self._script = script
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
            self._follow_script(connection, file)

    def _follow_script(self, connection: socket.socket, file: IO[bytes]) -> None:
        script = iter(self._script)
        file.read(4)
        while line := file.readline():
            if line == b"NOP\n":
                self.nop_count += 1
                continue
            body = file.read(int.from_bytes(file.read(4)))
            if line == b"IDENTIFY\n":
                for index in range(len(self._welcome)):
                    connection.sendall(self._welcome[index : index + 1])
                continue
            self.published.append(line + body)
            answer = next(script, b"")
            if answer is RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if answer is None or answer is RESET:
                return
            connection.sendall(answer)


@contextmanager
def express(
    nsqd: FakeNsqd | Address,
    *given: bytes,
    stdin: int = -1,
    batch_count: int = 2,
    timeout_s: float = 20.0,
) -> Iterator[tuple[ExpressPub, Tally]]:
    tally = Tally("t")
    made = ExpressPub(
        nsqd.address if isinstance(nsqd, FakeNsqd) else nsqd,
        tally,
        Splitter(b"\n"),
        given,
        timeout_s=timeout_s,
        batch_count=batch_count,
        batch_bytes=1 << 20,
        window_count=3,
        has_progress=False,
        stdin=stdin,
    )
    try:
        yield made, tally
    finally:
        made.restore_signals()


def test_messages_leave_in_commands_and_are_counted() -> None:
    with FakeNsqd(OK, OK) as nsqd, express(nsqd, b"one", b"two", b"three") as (made, tally):
        assert made.run()

    two = struct.pack(">iiI3sI3s", 18, 2, 3, b"one", 3, b"two")[4:]
    assert nsqd.published == [b"MPUB t\n" + two, b"PUB t\nthree"]
    assert (tally.published, tally.begun, tally.resent) == (3, 3, 0)
    assert tally.nodes == {str(nsqd.address)}


def test_stdin_is_published_as_it_comes() -> None:
    reading, writing = os.pipe()
    with FakeNsqd(OK, OK) as nsqd, express(nsqd, stdin=reading) as (made, tally):
        os.write(writing, b"one\n\n")

        def go_on() -> None:
            while not tally.published:
                time.sleep(0.001)
            os.write(writing, b"last")
            os.close(writing)

        writer = threading.Thread(target=go_on)
        writer.start()
        assert made.run()
        writer.join()
    os.close(reading)

    assert nsqd.published == [b"PUB t\none", b"PUB t\nlast"]
    assert (tally.published, tally.empty, made.has_input) == (2, 1, False)


def test_a_heartbeat_is_answered_between_commands() -> None:
    with FakeNsqd(HEARTBEAT + OK, OK) as nsqd, express(nsqd, *[b"x"] * 4) as (made, tally):
        assert made.run()

    assert (nsqd.nop_count, tally.published) == (1, 4)


BODIES = [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("third", "resent"),
    [
        (ERROR, 0),  # nsqd executes nothing behind a refusal
        (None, 6),  # three commands ahead, which may have been executed
        (RESET, 6),
        (frame(b"nonsense"), 6),
    ],
)
def test_what_is_not_answered_is_handed_over(third: bytes | None, resent: int) -> None:
    with FakeNsqd(OK, OK, third) as nsqd, express(nsqd, *BODIES) as (made, tally):
        assert not made.run()
        rest = made.take_rest()

    # A reset may swallow answers that were sent before it.
    assert tally.published == 4 or (third is RESET and tally.published in (0, 2))
    assert [body for bodies in rest for body in bodies] == BODIES[tally.published :]
    assert tally.begun == tally.published  # the others are begun again
    assert 2 <= tally.resent <= resent if resent else tally.resent == 0


def test_bytes_that_are_no_frames_end_it() -> None:
    with FakeNsqd(OK, b"\xff" * 8) as nsqd, express(nsqd, *BODIES) as (made, tally):
        assert not made.run()
        rest = made.take_rest()

    # An OK in the same read is not believed either; its messages are published twice.
    assert [body for bodies in rest for body in bodies] == BODIES[tally.published :]
    assert tally.resent >= 2


@pytest.mark.parametrize(
    "welcome",
    [
        frame(b'{"auth_required":true}'),
        frame(b"E_INVALID no", 1),
        frame(b"{not JSON"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_peer_that_wants_more_gets_nothing(welcome: bytes) -> None:
    with FakeNsqd(welcome=welcome) as nsqd, express(nsqd, b"x") as (made, tally):
        assert not made.run()
        assert made.take_rest() == [[b"x"]]

    assert nsqd.published == []
    assert not tally.has_connected


def test_an_nsqd_that_is_not_there_is_left_to_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
    for nowhere in (address, Address("/nowhere/nsqd.sock", 0)):
        with express(nowhere, b"x") as (made, tally):
            assert not made.run()
            assert made.take_rest() == [[b"x"]]
        assert tally.certainty() == "nothing is published"


def test_an_nsqd_that_does_not_answer_is_an_error() -> None:
    with (
        FakeNsqd(OK) as nsqd,
        express(nsqd, *BODIES[:6], timeout_s=0.2) as (made, tally),
        pytest.raises(PublishTimeoutError),
    ):
        made.run()

    assert tally.certainty() == "lines 1-2 are published, 3-6 may be"


def in_a_moment(do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.05, do)
    timer.start()
    return timer


def test_a_signal_ends_the_input() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\nhalf")
    before = signal.getsignal(signal.SIGTERM)
    with FakeNsqd(OK) as nsqd, express(nsqd, stdin=reading) as (made, tally):

        def interrupt() -> None:
            while not tally.published:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGTERM)

        timer = in_a_moment(interrupt)
        assert made.run()
        timer.join()
    os.close(reading)
    os.close(writing)

    assert tally.interrupt == 143
    assert nsqd.published == [b"PUB t\none"]
    assert signal.getsignal(signal.SIGTERM) is before
