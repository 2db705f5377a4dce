"""The connections of the workload: each knows how much it has read, and so what it was told."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from tests.support.v2_client import ERROR, HEARTBEAT, MAGIC, MESSAGE, RESPONSE, Message, V2Client

HOST = "127.0.0.1"
PATIENCE_S = 20.0
__all__ = [
    "ERROR",
    "MESSAGE",
    "RESPONSE",
    "HttpLink",
    "LinkEndedError",
    "Message",
    "TcpLink",
    "connected",
]


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[V2Client]:
    """A client for a test that tells a story, closed at its end."""
    client = await V2Client.connect((HOST, port))
    try:
        yield client
    finally:
        await client.close()


class LinkEndedError(Exception):
    """The daemon closed the connection, or is gone."""


class _Link:
    """One connection; `read_bytes` counts what has been taken out of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.port: int = writer.get_extra_info("sockname")[1]
        self.read_bytes = 0

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect.

        Raises:
            LinkEndedError: nobody is there.
        """
        try:
            return cls(*await asyncio.open_connection(HOST, port))
        except OSError as error:
            raise LinkEndedError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def send(self, data: bytes) -> None:
        """Send bytes; if the daemon is gone, the next read says so."""
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    def abort(self) -> None:
        """Break the connection off."""
        self._writer.transport.abort()

    async def _take(self, count: int) -> bytes:
        try:
            async with asyncio.timeout(PATIENCE_S):
                data = await self._reader.readexactly(count)
        except (OSError, asyncio.IncompleteReadError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise LinkEndedError from error
        self.read_bytes += count
        return data


class TcpLink(_Link):
    """The V2 protocol."""

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect and say hello."""
        link = await cls.connect(port)
        link.send(MAGIC)
        return link

    async def read_frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat."""
        while True:
            size, kind = struct.unpack(">ii", await self._take(8))
            frame = (kind, await self._take(size - 4))
            if frame != HEARTBEAT:
                return frame
            self.send(b"NOP\n")

    async def read_reply(self) -> bytes | None:
        """The data of the next reply, None if it is an error; messages must not come."""
        kind, data = await self.read_frame()
        assert kind in (RESPONSE, ERROR), (kind, data)
        return data if kind == RESPONSE else None


class HttpLink(_Link):
    """HTTP/1.1, one request after the other."""

    async def request(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and body of the reply."""
        head = f"{method} {target} HTTP/1.1\r\nHost: nsqd\r\nContent-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)
        try:
            async with asyncio.timeout(PATIENCE_S):
                head_bytes = await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise LinkEndedError from error
        self.read_bytes += len(head_bytes)
        status_line, *lines = head_bytes.decode().split("\r\n")
        [length] = [
            int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")
        ]
        return int(status_line.split(" ")[1]), await self._take(length)
