"""FakeNsqd: what a client can see of one nsqd with one topic and one channel, in fake time.

It keeps messages over a kill, as nsqd does with --mem-queue-size=0. It closes connections that do
not answer its heartbeats, and delivers again what was not answered in time.
"""

import asyncio
import json
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from tests.support.fake_time.loop import FakeTimeLoop

MSG_TIMEOUT_S: Final = 60.0
MAX_MSG_TIMEOUT_S: Final = 900.0
RESPONSE, ERROR, MESSAGE = range(3)


@dataclass(slots=True)
class Stored:
    """A message as nsqd keeps it."""

    id: bytes
    body: bytes
    attempts: int = 0


def frame(kind: int, data: bytes) -> bytes:
    """Encode a frame."""
    return struct.pack(">ii", len(data) + 4, kind) + data


class FakeNsqd:
    """The daemon: its queue, its clients, and levers for what may happen to it."""

    def __init__(self, loop: FakeTimeLoop, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.loop = loop
        self.clients: list[FakeClient] = []
        self.queue: deque[Stored] = deque()
        self.deferred_count = 0
        self.is_up = False
        # Deliveries that may come twice to a consumer which has handled them.
        self.redelivered_count = 0
        self.timed_out_count = 0
        # Connections that this nsqd has ended, as no answer to its heartbeats came.
        self.unanswered_heartbeats = 0
        self._next_id = 0
        # While frozen: what has to be done afterwards, in order.
        self._held: list[Callable[[], None]] | None = None

    @property
    def consumers(self) -> "list[FakeClient]":
        """The clients that have subscribed."""
        return [client for client in self.clients if client.is_subscribed]

    @property
    def rdy_total(self) -> int:
        """What all consumers together may have in flight."""
        return sum(client.rdy for client in self.consumers)

    @property
    def held_count(self) -> int:
        """Messages that are not finished."""
        in_flight = sum(len(client.in_flight) for client in self.clients)
        return len(self.queue) + self.deferred_count + in_flight

    def start(self) -> None:
        """Listen."""
        assert not self.is_up
        self.is_up = True
        self.loop.listen(self.host, self.port, lambda: FakeClient(self))

    def kill(self) -> None:
        """End at once; every connection is reset."""
        if self.is_up:
            self.is_up = False
            self.loop.stop_listening(self.host, self.port)
            self.reset_connections()
            self.thaw()  # Deferred messages that were due are on disk; clients hear nothing.

    def move(self, port: int) -> None:
        """Start on another port, as after a restart elsewhere with the same data."""
        self.kill()
        self.port = port
        self.start()

    def reset_connections(self) -> None:
        """Reset what is there; new connections are accepted."""
        for client in list(self.clients):
            client.abort()

    def freeze(self) -> None:
        """Stand still, as after SIGSTOP: connections are made, and nobody answers."""
        if self.is_up and self._held is None:
            self._held = []

    def thaw(self) -> None:
        """Go on, with what has come meanwhile first."""
        held, self._held = self._held or [], None
        for client in self.clients:
            client.last_command_at = self.loop.time()  # Nobody could have answered a heartbeat.
        for call in held:
            call()

    def do(self, call: Callable[[], None]) -> None:
        """Call now, or after the frost."""
        if self._held is None:
            call()
        else:
            self._held.append(call)

    def publish(self, bodies: list[bytes]) -> None:
        """Store messages."""
        for body in bodies:
            self._next_id += 1
            self.queue.append(Stored(b"%08x%08x" % (self.port, self._next_id), body))
        self.pump()

    def requeue(self, stored: Stored, delay_s: float = 0.0) -> None:
        """Queue a message again."""
        if delay_s <= 0:
            self.queue.append(stored)
            self.pump()
            return
        self.deferred_count += 1

        def due() -> None:
            self.deferred_count -= 1
            self.queue.append(stored)
            self.pump()

        self.loop.call_later(delay_s, self.do, due)

    def pump(self) -> None:
        """Deliver to consumers that are ready, in turns."""
        while self.queue:
            ready = [each for each in self.consumers if each.rdy > len(each.in_flight)]
            if not ready:
                return
            for client in ready[: len(self.queue)]:
                client.deliver(self.queue.popleft())


class FakeClient(asyncio.Protocol):
    """One connection, at nsqd's side."""

    def __init__(self, nsqd: FakeNsqd) -> None:
        self.rdy = 0
        self.is_subscribed = False
        self.in_flight: dict[bytes, tuple[Stored, asyncio.TimerHandle]] = {}
        self._nsqd = nsqd
        self._loop = nsqd.loop
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._has_magic = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._interval_s = 30.0
        self.last_command_at = self._loop.time()
        self._is_ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._nsqd.clients.append(self)
        self._beat_later()

    def data_received(self, data: bytes) -> None:
        self._nsqd.do(lambda: self._take(data))

    def eof_received(self) -> bool:
        self._nsqd.do(self._close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._nsqd.clients:
            self._leave()

    def abort(self) -> None:
        """Reset the connection."""
        assert self._transport is not None
        self._transport.abort()
        self._leave()

    def deliver(self, stored: Stored) -> None:
        """Send a message, which is then in flight."""
        stored.attempts += 1
        timer = self._loop.call_later(MSG_TIMEOUT_S, self._nsqd.do, lambda: self._time_out(stored))
        self.in_flight[stored.id] = (stored, timer)
        header = struct.pack(">qH16s", 1, stored.attempts, stored.id)
        self._send(frame(MESSAGE, header + stored.body))

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _leave(self) -> None:
        """Forget the client; its messages are delivered again."""
        self._nsqd.clients.remove(self)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._is_ending = True
        for stored, timer in self.in_flight.values():
            timer.cancel()
            self._nsqd.redelivered_count += 1
            self._nsqd.requeue(stored)
        self.in_flight.clear()

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _beat_later(self) -> None:
        self._heartbeat = self._loop.call_later(self._interval_s, self._nsqd.do, self._beat)

    def _beat(self) -> None:
        if self._is_ending:
            return
        if self._loop.time() - self.last_command_at > 2 * self._interval_s:
            self._nsqd.unanswered_heartbeats += 1
            self.abort()
            return
        self._send(frame(RESPONSE, b"_heartbeat_"))
        self._beat_later()

    def _time_out(self, stored: Stored) -> None:
        if self.in_flight.get(stored.id, (None,))[0] is stored:
            del self.in_flight[stored.id]
            self._nsqd.timed_out_count += 1
            self._nsqd.redelivered_count += 1
            self._nsqd.requeue(stored)

    def _take(self, data: bytes) -> None:
        if self._is_ending:
            return
        self.last_command_at = self._loop.time()
        self._received += data
        if not self._has_magic and len(self._received) >= 4:
            assert self._received[:4] == b"  V2"
            del self._received[:4]
            self._has_magic = True
        while (end := self._received.find(b"\n")) >= 0:
            words = bytes(self._received[:end]).split(b" ")
            body = b""
            if words[0] in (b"IDENTIFY", b"PUB", b"MPUB"):
                if len(self._received) < end + 5:
                    return
                (size,) = struct.unpack_from(">i", self._received, end + 1)
                if len(self._received) < end + 5 + size:
                    return
                body = bytes(self._received[end + 5 : end + 5 + size])
                end += 4 + size
            del self._received[: end + 1]
            self._execute(words, body)

    def _execute(self, words: list[bytes], body: bytes) -> None:
        nsqd = self._nsqd
        match words:
            case [b"IDENTIFY"]:
                self._interval_s = json.loads(body)["heartbeat_interval"] / 1000
                answer = {
                    "max_rdy_count": 2500,
                    "msg_timeout": round(MSG_TIMEOUT_S * 1000),
                    "max_msg_timeout": round(MAX_MSG_TIMEOUT_S * 1000),
                }
                self._send(frame(RESPONSE, json.dumps(answer).encode()))
            case [b"PUB", _]:
                nsqd.publish([body])
                self._send(frame(RESPONSE, b"OK"))
            case [b"MPUB", _]:
                nsqd.publish(_split(body))
                self._send(frame(RESPONSE, b"OK"))
            case [b"SUB", _, _]:
                self.is_subscribed = True
                self._send(frame(RESPONSE, b"OK"))
            case [b"RDY", count]:
                self.rdy = int(count)
                nsqd.pump()
            case [b"CLS"]:
                self.rdy = 0
                self._send(frame(RESPONSE, b"CLOSE_WAIT"))
            case [b"FIN" | b"REQ" | b"TOUCH" as verb, message_id, *rest]:
                self._answer(verb, message_id, rest)
            case [b"NOP"]:
                pass
            case _:
                raise AssertionError(words)

    def _answer(self, verb: bytes, message_id: bytes, rest: list[bytes]) -> None:
        nsqd = self._nsqd
        if message_id not in self.in_flight:
            text = b"E_%s_FAILED %s %s failed ID not in flight" % (verb, verb, message_id)
            self._send(frame(ERROR, text))
            return
        stored, timer = self.in_flight[message_id]
        timer.cancel()
        if verb == b"TOUCH":
            again = self._loop.call_later(MSG_TIMEOUT_S, nsqd.do, lambda: self._time_out(stored))
            self.in_flight[message_id] = (stored, again)
            return
        del self.in_flight[message_id]
        if verb == b"REQ":
            nsqd.requeue(stored, int(rest[0]) / 1000)
        else:
            nsqd.pump()


def _split(body: bytes) -> list[bytes]:
    (count,) = struct.unpack_from(">i", body)
    position = 4
    bodies = []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", body, position)
        bodies.append(body[position + 4 : position + 4 + size])
        position += 4 + size
    return bodies
