"""ConnectionRig: a V2Connection on a fake loop and transport, with a broker that a test drives."""

import asyncio
from collections.abc import Sequence
from struct import pack
from typing import Any, cast
from unittest.mock import patch

from nsqd.broker.broker import Broker
from nsqd.broker.errors import DepthLimitError
from nsqd.broker.queue.receipt import Receipt
from nsqd.config.options import Options
from nsqd.protocol.frames import FrameType
from nsqd.settings import command_limits, identify_limits
from nsqd.tcp import connection
from nsqd.tcp.connection import TcpSettings, V2Connection
from tests.support.fake_loop import FakeLoop, FakeTransport, FakeTurns

MAGIC = b"  V2"


class FakeTopic:
    """Notes the publishes, and answers as the test wants it."""

    def __init__(self) -> None:
        self.published: list[list[bytes]] = []
        self.is_durable = False  # publishes are answered when the test settles their receipt
        self.receipts: list[Receipt] = []
        self.error: Exception | None = None
        self.room_count: int | None = None  # None: room for everything

    @property
    def bodies(self) -> list[bytes]:
        """The messages of all publishes."""
        return [body for bodies in self.published for body in bodies]

    def publish(self, bodies: Sequence[bytes], *, delay_s: float = 0.0) -> Receipt | None:
        if self.error is not None:
            raise self.error
        if self.room_count is not None:
            if len(bodies) > self.room_count:
                raise DepthLimitError("topic t is full", self.room_count)
            self.room_count -= len(bodies)
        self.published.append(list(bodies))
        if not self.is_durable:
            return None
        self.receipts.append(Receipt(1))
        return self.receipts[-1]


class FakeBroker:
    """One topic, `t`."""

    def __init__(self) -> None:
        self.topic = FakeTopic()
        self.topics = {"t": self.topic}
        self.refusal_count = 0

    def count_refusal(self, _topic: str) -> None:
        self.refusal_count += 1


class ConnectionRig:
    """One client of nsqd, at its first byte or past its magic."""

    def __init__(
        self,
        *,
        magic: bytes = MAGIC,
        broker: Broker | None = None,
        turns: FakeTurns | None = None,
        **settings: Any,
    ) -> None:
        """Connect.

        Args:
            turns: those of another client, to share the loop with it.
            settings: of `TcpSettings`, instead of the defaults.
        """
        self.turns = turns or FakeTurns(FakeLoop())
        self.loop = self.turns.loop
        self.transport = FakeTransport(peer="")
        self.broker = FakeBroker()
        self.topic = self.broker.topic
        options = Options()
        defaults: dict[str, Any] = {
            "commands": command_limits(options),
            "identify": identify_limits(options, has_tls=False),
            "max_req_ms": 3_600_000,
            "handshake_timeout_s": 10.0,
        }
        self.settings = TcpSettings(**(defaults | settings))
        with self._loop_in_place(), patch.object(connection, "running_turns", lambda: self.turns):
            self.connection = V2Connection(broker or cast(Broker, self.broker), self.settings)
            self.connection.connection_made(self.transport)
        if magic:
            self.send(magic)

    def _loop_in_place(self) -> Any:
        return patch.object(asyncio, "get_running_loop", self.loop.as_loop)

    def send(self, *parts: bytes) -> None:
        """Receive bytes, read by read."""
        with self._loop_in_place():
            for part in parts:
                self.connection.data_received(part)

    def publish(self, *bodies: bytes) -> None:
        """Receive one PUB for each body in one read."""
        self.send(b"".join(pub(body) for body in bodies))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._loop_in_place():
            self.loop.advance(seconds)

    def frames(self) -> list[tuple[FrameType, bytes]]:
        """Return the frames that were sent since the last call."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        frames = []
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            assert end <= len(data)
            frames.append((FrameType(int.from_bytes(data[4:8], "big")), data[8:end]))
            data = data[end:]
        return frames

    def texts(self) -> list[bytes]:
        """Return the data of the frames that were sent since the last call."""
        return [data for _, data in self.frames()]


def sized(body: bytes) -> bytes:
    """Return a body with its size before it."""
    return pack(">i", len(body)) + body


def pub(body: bytes) -> bytes:
    """Return a PUB to the topic `t`."""
    return b"PUB t\n" + sized(body)
