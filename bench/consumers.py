"""The worker that consumes: it receives, checks, counts and finishes messages by the buffer.

None of its steps is done once per message. All frames of a run have one size, so a buffer is a
matrix with a frame in each row: that its header columns are right is eight strided comparisons,
and its FINs are sixteen strided copies, one for each column of the ids.
"""

import select
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.load import LoadResult, Start
from bench.wire import LoadError

CONSUMER_BUFFER_BYTES: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class ConsumePlan:
    """Receive and finish `messages` messages of one size, `connections` for each channel."""

    address: tuple[str, int]
    topic: str
    channels: tuple[str, ...]
    connections: int
    rdy: int
    body_bytes: int
    messages: int
    seconds: float


class _Subscription:
    """One consuming connection: a buffer that always begins at a frame, and FINs to send."""

    def __init__(self, plan: ConsumePlan, channel: str) -> None:
        self.sock = wire.connect_consumer(plan.address, plan.topic, channel)
        self._frame_bytes = wire.BODY_OFFSET + plan.body_bytes
        frames = max(4, min(plan.rdy, CONSUMER_BUFFER_BYTES // self._frame_bytes))
        self._buffer = bytearray((frames + 1) * self._frame_bytes)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._pending = bytearray()
        header = wire.type_and_size.pack(self._frame_bytes - 4, wire.FRAME_MESSAGE)
        self._header = header
        self._columns = [bytes([byte]) * (frames + 1) for byte in header]
        self._fins = memoryview(b"FIN 0123456789abcdef\n" * (frames + 1))

    @property
    def is_blocked(self) -> bool:
        return len(self._pending) > 0

    def send(self, data: bytes | bytearray = b"") -> None:
        """Send what waits and this after it, as far as the socket takes it."""
        if self._pending:
            self._pending += data
            data = self._pending
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        self._pending = bytearray(data[sent:]) if sent < len(data) else bytearray()

    def receive(self) -> int:
        """Take what has arrived, finish every complete message of it, and say how many.

        Raises:
            LoadError: an error frame, or the connection was closed.
        """
        received = self.sock.recv_into(self._view[self._end :])
        if received == 0:
            raise LoadError("the daemon closed a consumer's connection")
        self._end += received
        count = self._end // self._frame_bytes
        if count and not self._is_plain(count):
            return self._receive_mixed()
        if count:
            self._finish_plain(count)
        # What is left may be a heartbeat or an error: shorter than a message, but not the start
        # of one.
        if self._end >= wire.FRAME_HEADER_BYTES and not self._buffer.startswith(self._header):
            count += self._receive_mixed()
        return count

    def _is_plain(self, count: int) -> bool:
        """Whether the buffer begins with `count` messages of the expected size."""
        buffer, step = self._buffer, self._frame_bytes
        used = count * step
        return all(buffer[i:used:step] == column[:count] for i, column in enumerate(self._columns))

    def _finish_plain(self, count: int) -> None:
        buffer, step = self._buffer, self._frame_bytes
        used = count * step
        fins = bytearray(self._fins[: count * wire.FIN_BYTES])
        for column in range(16):
            fins[4 + column :: wire.FIN_BYTES] = buffer[wire.ID_OFFSET + column : used : step]
        self._keep_from(used)
        self.send(fins)

    def _receive_mixed(self) -> int:
        """The slow way, frame by frame, for the buffer that has a heartbeat in it."""
        answers, position, count = bytearray(), 0, 0
        while self._end - position >= wire.FRAME_HEADER_BYTES:
            size, kind = wire.type_and_size.unpack_from(self._buffer, position)
            frame = self._buffer[position : position + 4 + size]
            if kind == wire.FRAME_ERROR:
                raise LoadError(f"a consumer received {wire.describe(frame)}")
            if self._end - position < 4 + size:
                break
            if kind == wire.FRAME_MESSAGE:
                answers += b"FIN %s\n" % frame[wire.ID_OFFSET : wire.BODY_OFFSET]
                count += 1
            elif frame == wire.HEARTBEAT_FRAME:
                answers += b"NOP\n"
            position += 4 + size
        self._keep_from(position)
        self.send(answers)
        return count

    def _keep_from(self, position: int) -> None:
        rest = self._end - position
        self._buffer[:rest] = self._buffer[position : self._end]
        self._end = rest


def consume(plan: ConsumePlan, start: Start) -> LoadResult:
    """Receive and finish until all messages have come or the time is used up.

    A FIN has no answer, but RDY bounds how many of them the daemon may still have to read.

    Raises:
        LoadError: an error frame, a closed connection, or nothing came at all.
    """
    with ExitStack() as resources:
        poller = resources.enter_context(select.epoll())
        subscriptions: dict[int, _Subscription] = {}
        for channel in plan.channels * plan.connections:
            subscription = _Subscription(plan, channel)
            resources.enter_context(subscription.sock)
            subscription.sock.setblocking(False)
            poller.register(subscription.sock, select.EPOLLIN)
            subscriptions[subscription.sock.fileno()] = subscription
        start()
        return _consume(plan, poller, subscriptions)


def _consume(
    plan: ConsumePlan, poller: select.epoll, subscriptions: dict[int, _Subscription]
) -> LoadResult:
    cpu_s, started_ns = time.process_time(), time.monotonic_ns()
    deadline = time.monotonic() + plan.seconds
    for subscription in subscriptions.values():
        subscription.send(b"RDY %d\n" % plan.rdy)
    count, remaining_s = 0, plan.seconds
    while count < plan.messages and remaining_s > 0:
        for number, events in poller.poll(remaining_s):
            subscription = subscriptions[number]
            was_blocked = subscription.is_blocked
            if events & ~select.EPOLLOUT:
                count += subscription.receive()
            else:
                subscription.send()
            if subscription.is_blocked != was_blocked:
                wanted = select.EPOLLIN | (select.EPOLLOUT if subscription.is_blocked else 0)
                poller.modify(number, wanted)
        remaining_s = deadline - time.monotonic()
    if count == 0:
        raise LoadError(f"no message came in {plan.seconds:.1f} s")
    return LoadResult(count, started_ns, time.monotonic_ns(), time.process_time() - cpu_s)
