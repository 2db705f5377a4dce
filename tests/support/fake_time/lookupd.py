"""FakeLookupd: an nsqlookupd's HTTP door in fake time; it knows the nsqds that a test names."""

import asyncio
import enum
import json
from collections.abc import Callable
from typing import cast

from tests.support.fake_time.loop import FakeTimeLoop

Addresses = Callable[[], list[tuple[str, int]]]


class Mood(enum.Enum):
    """How it answers."""

    WELL = enum.auto()
    GARBAGE = enum.auto()
    SILENT = enum.auto()


class FakeLookupd:
    """The daemon. `addresses` returns the nsqds that it knows now."""

    def __init__(self, loop: FakeTimeLoop, host: str, port: int, addresses: Addresses) -> None:
        self.host, self.port = host, port
        self.mood = Mood.WELL
        self.request_count = 0
        self.is_up = False
        self.addresses = addresses
        self.doors: set[_Door] = set()
        self._loop = loop

    def start(self) -> None:
        """Listen."""
        if not self.is_up:
            self.is_up = True
            self._loop.listen(self.host, self.port, lambda: _Door(self))

    def kill(self) -> None:
        """End at once."""
        if self.is_up:
            self.is_up = False
            self._loop.stop_listening(self.host, self.port)
            for door in list(self.doors):
                door.abort()


class _Door(asyncio.Protocol):
    """One connection."""

    def __init__(self, lookupd: FakeLookupd) -> None:
        self._lookupd = lookupd
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lookupd.doors.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lookupd.doors.discard(self)

    def abort(self) -> None:
        """Reset the connection."""
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        while b"\r\n\r\n" in self._received:
            _, self._received = self._received.split(b"\r\n\r\n", 1)
            self._lookupd.request_count += 1
            if self._lookupd.mood is Mood.SILENT:
                continue
            producers = [
                {"broadcast_address": host, "tcp_port": port}
                for host, port in self._lookupd.addresses()
            ]
            body = json.dumps({"producers": producers}).encode()
            if self._lookupd.mood is Mood.GARBAGE:
                body = b"<html>"
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)
