"""The publisher against a scripted nsqd: frames in any pieces, refusals, retries. No Spark."""

import contextlib
import io
import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message as Headers

import pytest

from spark_jobs.tls import TlsSettings
from spark_jobs.write import publisher
from spark_jobs.write.publisher import (
    Publisher,
    PublishError,
    PublisherSettings,
    encode_dpub,
    encode_mpub,
    find_addresses,
)

PATIENCE_S = 20
OK = b"OK"


def frame(data: bytes, kind: int = 0) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def error(text: str) -> bytes:
    return frame(text.encode(), 1)


def command(body: bytes) -> publisher.Command:
    return encode_mpub("t", 1, struct.pack(">i", len(body)) + body)


class Peer:
    """One connection as nsqd sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
        self._connection = connection
        self.lines: list[bytes] = []
        self.bodies: list[bytes] = []

    def read_identify(self) -> dict[str, object]:
        assert self._file.read(4) == b"  V2"
        assert self._file.readline() == b"IDENTIFY\n"
        request: dict[str, object] = json.loads(self._read_sized())
        return request

    def read_command(self) -> bytes:
        """Return a command's line, and keep its content."""
        line = self._file.readline()
        assert line
        self.lines.append(line)
        if line != b"NOP\n":
            self.bodies.append(self._read_sized())
        return line

    def send(self, data: bytes, piece_bytes: int = 1 << 20) -> None:
        for start in range(0, len(data), piece_bytes):
            self._connection.sendall(data[start : start + piece_bytes])

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def _read_sized(self) -> bytes:
        (size,) = struct.unpack(">i", self._file.read(4))
        data = self._file.read(size)
        assert len(data) == size
        return data


class ScriptedNsqd(threading.Thread):
    """A server that plays one function per connection; a failure of one fails the test."""

    def __init__(self, *scripts: Callable[[Peer], None]) -> None:
        super().__init__()
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.address: tuple[str, int] = self._listener.getsockname()
        self.peers: list[Peer] = []
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            for script in self._scripts:
                connection, _ = self._listener.accept()
                connection.settimeout(PATIENCE_S)
                peer = Peer(connection)
                self.peers.append(peer)
                try:
                    peer.read_identify()
                    script(peer)
                finally:
                    peer.close()
        except (AssertionError, OSError) as failure:
            self._failure = failure

    def finish(self) -> None:
        self.join(PATIENCE_S)
        self._listener.close()
        if self._failure is not None:
            raise self._failure


@contextlib.contextmanager
def scripted(*scripts: Callable[[Peer], None]) -> Iterator[ScriptedNsqd]:
    server = ScriptedNsqd(*scripts)
    server.start()
    yield server
    server.finish()


@contextlib.contextmanager
def publishing(server: ScriptedNsqd, **settings: object) -> Iterator[Publisher]:
    made = Publisher(PublisherSettings(timeout_s=10, **settings), [server.address])  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000])
def test_answers_may_come_in_any_pieces(piece_bytes: int) -> None:
    def answer(peer: Peer) -> None:
        peer.send(frame(b"{}"), piece_bytes)
        for _ in range(3):
            assert peer.read_command() == b"MPUB t\n"
        peer.send(frame(OK) * 3, piece_bytes)

    with scripted(answer) as server, publishing(server) as made:
        for body in (b"a", b"b", b"c"):
            made.publish(command(body))
        made.flush()

        assert (made.published_count, made.resent_count) == (3, 0)


def test_heartbeats_are_answered_and_are_no_answers() -> None:
    def answer(peer: Peer) -> None:
        peer.send(frame(b"_heartbeat_") + frame(OK))  # an old nsqd negotiates nothing
        assert peer.read_command() == b"NOP\n"
        assert peer.read_command() == b"DPUB t 5\n"
        peer.send(frame(b"_heartbeat_") + frame(OK))
        assert peer.read_command() == b"NOP\n"

    with scripted(answer) as server, publishing(server) as made:
        made.publish(encode_dpub("t", b"x", 5))
        made.flush()

        assert made.published_count == 1


def test_no_more_commands_than_the_window_wait_for_answers() -> None:
    def answer(peer: Peer) -> None:
        peer.send(frame(b"{}"))
        for _ in range(4):
            # The window is two: a third command comes only when the first has its answer.
            peer.read_command()
            peer.send(frame(OK))

    with scripted(answer) as server, publishing(server, window_count=2) as made:
        for number in range(4):
            made.publish(command(b"%d" % number))
            assert made.published_count >= number
        made.flush()

        assert made.published_count == 4


def test_commands_without_an_answer_are_sent_again() -> None:
    def breaks(peer: Peer) -> None:
        peer.send(frame(b"{}"))
        for _ in range(3):
            peer.read_command()
        peer.send(frame(OK) + frame(OK)[:5])

    def works(peer: Peer) -> None:
        peer.send(frame(b"{}"))
        for _ in range(2):
            peer.read_command()
        peer.send(frame(OK) * 2)

    with scripted(breaks, works) as server, publishing(server) as made:
        for body in (b"a", b"b", b"c"):
            made.publish(command(body))
        made.flush()

        assert (made.published_count, made.resent_count) == (3, 2)
    assert [body[-1:] for body in server.peers[1].bodies] == [b"b", b"c"]


def test_a_full_disk_is_tried_again() -> None:
    def refuses(peer: Peer) -> None:
        peer.send(frame(b"{}"))
        peer.read_command()
        peer.send(error("E_MPUB_FAILED MPUB failed no space left on device"))

    def works(peer: Peer) -> None:
        peer.send(frame(b"{}"))
        peer.read_command()
        peer.send(frame(OK))

    with scripted(refuses, refuses, works) as server, publishing(server) as made:
        made.publish(command(b"a"))
        made.flush()

        assert (made.published_count, made.resent_count) == (1, 2)


def test_retries_come_to_an_end() -> None:
    def refuses(peer: Peer) -> None:
        peer.send(frame(b"{}"))
        peer.read_command()
        peer.send(error("E_PUB_FAILED PUB failed exiting"))

    with scripted(refuses) as server, publishing(server, retry_count=0) as made:
        made.publish(command(b"a"))
        with pytest.raises(PublishError, match=r"E_PUB_FAILED PUB failed exiting \(tried 1"):
            made.flush()


@pytest.mark.parametrize(
    ("greeting", "answers", "text"),
    [
        (frame(b"{}"), error("E_BAD_TOPIC MPUB topic name is not valid"), "refuses: E_BAD_TOPIC"),
        (frame(b"{}"), frame(b"CLOSE_WAIT"), "unexpected answer"),
        (frame(b"{}"), b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak NSQ's protocol"),
        (struct.pack(">ii", 3, 0), b"", "does not speak NSQ's protocol"),
        (frame(b"hello"), b"", "does not speak NSQ's protocol"),
        (error("E_INVALID cannot IDENTIFY"), b"", "refuses: E_INVALID"),
    ],
)
def test_a_refusal_fails_at_once(greeting: bytes, answers: bytes, text: str) -> None:
    def answer(peer: Peer) -> None:
        peer.send(greeting)
        if answers:
            peer.read_command()
            peer.send(answers)

    def publish(made: Publisher) -> None:
        made.publish(command(b"a"))
        made.flush()

    with scripted(answer) as server, publishing(server) as made:
        with pytest.raises(PublishError, match=text):
            publish(made)

        assert made.published_count == made.resent_count == 0


def test_tls_that_is_not_offered_fails() -> None:
    with (
        scripted(lambda peer: peer.send(frame(b'{"tls_v1": false}'))) as server,
        publishing(server, tls=TlsSettings()) as made,
        pytest.raises(PublishError, match="does not offer TLS"),
    ):
        made.publish(command(b"a"))


class Answers:
    """Answers of an nsqlookupd, by path."""

    def __init__(self, answers: dict[str, str | int]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __call__(self, url: str, timeout: float) -> io.BytesIO:
        self.asked.append(url)
        answer = self._answers.get(url.partition("4161")[2], 404)
        if isinstance(answer, int):
            raise urllib.error.HTTPError(url, answer, "no", Headers(), io.BytesIO())
        return io.BytesIO(answer.encode())


NODE = '{"broadcast_address": "n1", "tcp_port": 4150}'


@pytest.mark.parametrize(
    "answers",
    [
        {"/lookup?topic=a%23ephemeral": f'{{"producers": [{NODE}]}}', "/nodes": 500},
        {"/lookup?topic=a%23ephemeral": f'{{"data": {{"producers": [{NODE}, {NODE}]}}}}'},
        {"/nodes": f'{{"producers": [{NODE}]}}'},
        {
            "/lookup?topic=a%23ephemeral": '{"producers": null}',
            "/nodes": f'{{"producers":[{NODE}]}}',
        },
    ],
)
def test_addresses_come_from_nsqlookupd(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | int]
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Answers(answers))
    settings = PublisherSettings(lookupd=("l:4161", "http://m:4161"))

    assert find_addresses(settings, "a#ephemeral") == (("n1", 4150),)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({}, r"nsqlookupd knows no nsqd$"),
        ({"/nodes": "not JSON"}, r"knows no nsqd \(l:4161: "),
        ({"/nodes": '{"producers": []}'}, r"knows no nsqd$"),
        ({"/nodes": 500}, r"knows no nsqd \(l:4161: HTTP Error 500"),
        ({"/nodes": "[]"}, r"knows no nsqd \(l:4161: "),
        ({"/nodes": '{"producers": [{"hostname": "x"}]}'}, r"knows no nsqd \(l:4161: "),
    ],
)
def test_no_address_from_nsqlookupd_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | int], text: str
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Answers(answers))

    with pytest.raises(PublishError, match=text):
        find_addresses(PublisherSettings(lookupd=("l:4161",)), "t")
