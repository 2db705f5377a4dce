"""Workers that publish, over the V2 protocol and over HTTP.

None makes an object per message: what is sent is a view into one endless periodic stream, and
what is answered is compared with a stream of OKs and counted by its length.
"""

import select
import socket
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.load import LoadResult, Start, block_with_timeout, percentiles_ms
from bench.wire import LoadError

DRAIN_TIMEOUT_S: Final = 30.0
RECEIVE_BYTES: Final = 1 << 16
# Long enough that a send seldom ends at the wrap-around of the stream.
STREAM_BYTES: Final = 1 << 20

_OK_STREAM: Final = wire.OK_FRAME * (RECEIVE_BYTES // len(wire.OK_FRAME) + 2)


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """Send `unit` again and again, at most `window` of them unanswered on each connection."""

    address: tuple[str, int]
    unit: bytes
    unit_messages: int
    window: int
    connections: int
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PostPlan:
    """POST `request` over keep-alive connections, one request at a time on each."""

    address: tuple[str, int]
    request: bytes
    connections: int
    messages: int
    seconds: float


class _Pipeline:
    """One publishing connection: how far its stream was sent and how far it was answered."""

    def __init__(self, plan: PublishPlan, stream: memoryview, quota_units: int) -> None:
        self.sock = wire.connect_publisher(plan.address)
        self.sock.setblocking(False)
        self.quota_units = quota_units
        self.is_blocked = False
        self._window = plan.window
        self._unit_bytes = len(plan.unit)
        self._stream = stream
        self._sent_bytes = 0
        self._answered_bytes = 0

    @property
    def answered_units(self) -> int:
        return self._answered_bytes // len(wire.OK_FRAME)

    @property
    def is_done(self) -> bool:
        return self.answered_units >= self.quota_units

    def send(self) -> None:
        """Fill the window. The stream repeats itself, so the offset alone says what is next."""
        allowed = min(self.answered_units + self._window, self.quota_units) * self._unit_bytes
        self.is_blocked = False
        while self._sent_bytes < allowed:
            position = self._sent_bytes % len(self._stream)
            chunk = self._stream[position : position + allowed - self._sent_bytes]
            try:
                sent = self.sock.send(chunk)
            except BlockingIOError:
                sent = 0
            self._sent_bytes += sent
            if sent < len(chunk):
                self.is_blocked = True
                return

    def receive(self) -> None:
        """Count answers.

        Raises:
            LoadError: an answer that is not OK.
        """
        data = self.sock.recv(RECEIVE_BYTES)
        phase = self._answered_bytes % len(wire.OK_FRAME)
        if not data or data != _OK_STREAM[phase : phase + len(data)]:
            raise LoadError(f"a publish was answered with {wire.describe(data)}")
        self._answered_bytes += len(data)

    def stop(self) -> None:
        """Publish no more than what has been begun."""
        begun = -(-self._sent_bytes // self._unit_bytes)
        self.quota_units = min(self.quota_units, begun)


def publish(plan: PublishPlan, start: Start) -> LoadResult:
    """Publish until all messages or the time are used up, and every publish is answered.

    Raises:
        LoadError: the daemon refuses, disconnects, or stops answering.
    """
    stream = memoryview(plan.unit * max(2, STREAM_BYTES // len(plan.unit)))
    share, rest = divmod(-(-plan.messages // plan.unit_messages), plan.connections)
    with ExitStack() as resources:
        poller = resources.enter_context(select.epoll())
        pipelines: dict[int, _Pipeline] = {}
        for number in range(plan.connections):
            pipeline = _Pipeline(plan, stream, share + (number < rest))
            resources.enter_context(pipeline.sock)
            poller.register(pipeline.sock, select.EPOLLIN)
            pipelines[pipeline.sock.fileno()] = pipeline
        start()
        return _publish(plan, poller, pipelines)


def _publish(
    plan: PublishPlan, poller: select.epoll, pipelines: dict[int, _Pipeline]
) -> LoadResult:
    cpu_s, started_ns = time.process_time(), time.monotonic_ns()
    deadline = time.monotonic() + plan.seconds
    for pipeline in pipelines.values():
        _send(poller, pipeline)
    is_stopping = False
    while not all(p.is_done for p in pipelines.values()):
        for number, events in poller.poll(1.0):
            pipeline = pipelines[number]
            if events & ~select.EPOLLOUT:
                pipeline.receive()
            _send(poller, pipeline)
        now = time.monotonic()
        if now >= deadline:
            if is_stopping:
                raise LoadError(f"publishes unanswered after {DRAIN_TIMEOUT_S:.0f} s")
            is_stopping, deadline = True, now + DRAIN_TIMEOUT_S
            for pipeline in pipelines.values():
                pipeline.stop()
    ended_ns = time.monotonic_ns()
    answered = sum(p.answered_units for p in pipelines.values()) * plan.unit_messages
    return LoadResult(answered, started_ns, ended_ns, time.process_time() - cpu_s)


def _send(poller: select.epoll, pipeline: _Pipeline) -> None:
    """Send, and ask for writability only while the socket is full."""
    was_blocked = pipeline.is_blocked
    pipeline.send()
    if pipeline.is_blocked != was_blocked:
        events = select.EPOLLIN | (select.EPOLLOUT if pipeline.is_blocked else 0)
        poller.modify(pipeline.sock.fileno(), events)


def publish_in_bursts(plan: PublishPlan, start: Start) -> LoadResult:
    """One connection with up to a window unanswered, refilled by half a window at a time.

    The kernel gathers the answers to half a window (MSG_WAITALL): waking up in Python for each
    of them would cost more than the daemon needs. SO_RCVLOWAT is no way to do it, as answers
    that nobody reads are not acknowledged and so stop the daemon's sending.

    Raises:
        LoadError: the daemon refuses, disconnects, or stops answering.
    """
    with wire.connect_publisher(plan.address) as sock:
        block_with_timeout(sock)
        start()
        return _publish_in_bursts(plan, sock)


def _publish_in_bursts(plan: PublishPlan, sock: socket.socket) -> LoadResult:
    half = max(1, plan.window // 2)
    burst, expected = plan.unit * half, wire.OK_FRAME * half
    unsent = max(1, plan.messages // plan.unit_messages // half)
    outstanding = answered = 0
    cpu_s, started_ns = time.process_time(), time.monotonic_ns()
    deadline = time.monotonic() + plan.seconds
    while unsent or outstanding:
        while unsent and outstanding < 2:
            sock.sendall(burst)
            unsent -= 1
            outstanding += 1
        try:
            answers = sock.recv(len(expected), socket.MSG_WAITALL)
        except BlockingIOError as error:
            raise LoadError("publishes were not answered") from error
        if answers != expected:
            raise LoadError(f"a publish was answered with {wire.describe(answers)}")
        answered += half
        outstanding -= 1
        if time.monotonic() >= deadline:
            unsent = 0
    ended_ns = time.monotonic_ns()
    count = answered * plan.unit_messages
    return LoadResult(count, started_ns, ended_ns, time.process_time() - cpu_s)


def publish_synchronously(plan: PublishPlan, start: Start) -> LoadResult:
    """One connection, one publish at a time, each timed until its OK.

    Raises:
        LoadError: the daemon refuses, disconnects, or stops answering.
    """
    with wire.connect_publisher(plan.address) as sock:
        block_with_timeout(sock)
        start()
        return _publish_synchronously(plan, sock)


def _publish_synchronously(plan: PublishPlan, sock: socket.socket) -> LoadResult:
    latencies: array[int] = array("q")
    note, clock, send, receive = latencies.append, time.monotonic_ns, sock.send, sock.recv
    unit, expected, count = plan.unit, wire.OK_FRAME, 0
    cpu_s, started_ns = time.process_time(), clock()
    now, deadline_ns = started_ns, started_ns + int(plan.seconds * 1e9)
    while count < plan.messages and now < deadline_ns:
        if send(unit) != len(unit):
            raise LoadError("a blocking send was cut short")
        try:
            answer = receive(64)
        except BlockingIOError as error:
            raise LoadError("a publish was not answered") from error
        if answer != expected:
            raise LoadError(f"a publish was answered with {wire.describe(answer)}")
        before, now = now, clock()
        note(now - before)
        count += 1
    cpu_s = time.process_time() - cpu_s
    return LoadResult(count, started_ns, now, cpu_s, percentiles_ms(latencies))


def post(plan: PostPlan, start: Start) -> LoadResult:
    """POST until all messages or the time are used up, one request per connection at a time.

    Raises:
        LoadError: an answer that is not 200 OK, or none.
    """
    with ExitStack() as resources:
        poller = resources.enter_context(select.epoll())
        sockets: dict[int, socket.socket] = {}
        for _ in range(plan.connections):
            sock = resources.enter_context(wire.connect(plan.address))
            block_with_timeout(sock)
            poller.register(sock, select.EPOLLIN)
            sockets[sock.fileno()] = sock
        start()
        return _post(plan, poller, sockets)


def _post(plan: PostPlan, poller: select.epoll, sockets: dict[int, socket.socket]) -> LoadResult:
    answers = dict.fromkeys(sockets, b"")
    cpu_s, started_ns = time.process_time(), time.monotonic_ns()
    deadline = time.monotonic() + plan.seconds
    for sock in sockets.values():
        sock.sendall(plan.request)
    count, outstanding, unsent = 0, len(sockets), plan.messages - len(sockets)
    while outstanding > 0:
        ready = poller.poll(wire.SOCKET_TIMEOUT_S)
        if not ready:
            raise LoadError(f"{outstanding} requests unanswered")
        if time.monotonic() >= deadline:
            unsent = 0
        for number, _ in ready:
            sock = sockets[number]
            answers[number] += _receive_answer(sock)
            if not _is_whole(answers[number]):
                continue
            answers[number] = b""
            count += 1
            if unsent > 0:
                sock.sendall(plan.request)
                unsent -= 1
            else:
                outstanding -= 1
    return LoadResult(count, started_ns, time.monotonic_ns(), time.process_time() - cpu_s)


def _receive_answer(sock: socket.socket) -> bytes:
    data = sock.recv(RECEIVE_BYTES)
    if not data:
        raise LoadError("the daemon closed an HTTP connection")
    return data


def _is_whole(answer: bytes) -> bool:
    """Whether a `200 OK` has arrived to its end."""
    if not answer.startswith(b"HTTP/1.1 200"[: len(answer)]):
        raise LoadError(f"a POST was answered with {answer[:200]!r}")
    return answer.endswith(b"\r\n\r\nOK")
