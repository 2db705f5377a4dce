"""The consumer works on whole columns; a scripted daemon shows that no message is lost by it."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench import wire
from bench.consumers import ConsumePlan, consume
from bench.wire import LoadError

BODY = b"b" * 50
HEARTBEAT = struct.pack(">ii", 15, 0) + b"_heartbeat_"


def message_frame(number: int, body: bytes = BODY) -> bytes:
    payload = struct.pack(">qH16s", 1, 1, b"%016x" % number) + body
    return struct.pack(">ii", 4 + len(payload), 2) + payload


class ScriptedDaemon:
    """Accepts one consumer, sends it these chunks after RDY, keeps what it says until it closes."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.received = b""
        self._chunks = chunks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(10)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._thread.join(10)
            self._listener.close()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(10)
            for ending in (b"}", b"\n"):  # the ends of IDENTIFY and of SUB
                while not self.received.endswith(ending):
                    self.received += sock.recv(4096)
                sock.sendall(wire.OK_FRAME)
            while b"RDY" not in self.received:
                self.received += sock.recv(4096)
            try:
                for chunk in self._chunks:
                    sock.sendall(chunk)
                while data := sock.recv(4096):
                    self.received += data
            except ConnectionError:
                return  # the consumer has seen enough


def consume_from(daemon: ScriptedDaemon, messages: int) -> int:
    plan = ConsumePlan(
        address=daemon.address,
        topic="t",
        channels=("c",),
        connections=1,
        rdy=100,
        body_bytes=len(BODY),
        messages=messages,
        seconds=5.0,
    )
    with daemon.running():
        return consume(plan, lambda: None).messages


def finished_ids(daemon: ScriptedDaemon) -> list[bytes]:
    commands = daemon.received.partition(b"RDY 100\n")[2].split(b"\n")
    return [command[4:] for command in commands if command.startswith(b"FIN ")]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 84, 85, 1000, 100_000])
def test_every_id_is_finished_once_whatever_the_split(chunk_bytes: int) -> None:
    stream = b"".join(message_frame(number) for number in range(300))
    chunks = [stream[i : i + chunk_bytes] for i in range(0, len(stream), chunk_bytes)]
    daemon = ScriptedDaemon(chunks)

    count = consume_from(daemon, 300)

    assert count == 300
    assert finished_ids(daemon) == [b"%016x" % number for number in range(300)]


def test_heartbeats_between_messages_are_answered() -> None:
    frames = [message_frame(number) for number in range(50)]
    frames.insert(20, HEARTBEAT)
    frames.insert(0, HEARTBEAT)
    daemon = ScriptedDaemon([b"".join(frames)])

    count = consume_from(daemon, 50)

    assert count == 50
    assert finished_ids(daemon) == [b"%016x" % number for number in range(50)]
    assert daemon.received.count(b"NOP\n") == 2


def test_error_frame_ends_the_load() -> None:
    text = b"E_FIN_FAILED FIN 0 failed"
    error = struct.pack(">ii", 4 + len(text), 1) + text
    daemon = ScriptedDaemon([message_frame(0) + error])

    with pytest.raises(LoadError, match="E_FIN_FAILED"):
        consume_from(daemon, 2)
