"""The connections of the workload: each knows how much it has read, and so what it was told."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Self

from tests.support.daemon_process import HOST
from tests.support.faults.plan import pair_ports
from tests.support.http_client import HttpClient
from tests.support.v2_client import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    RESPONSE,
    ConnectionEndedError,
    Frame,
    Message,
    V2Client,
)
from tests.support.waiting import PATIENCE_S

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


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Tell the end of a connection from a daemon that says nothing, which is a TimeoutError."""
    try:
        yield
    except TimeoutError:
        raise
    except (OSError, EOFError, ConnectionEndedError) as error:
        raise LinkEndedError(str(error)) from error


class TcpLink(V2Client):
    """The V2 protocol; an aborted context leaves nothing open."""

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect and say hello.

        Raises:
            LinkEndedError: no daemon listens.
        """
        with _ending():
            return await cls.connect((HOST, port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    @property
    def port(self) -> int:
        """Both ends, see `pair_ports`."""
        own: int = self._writer.get_extra_info("sockname")[1]
        return pair_ports(self._writer.get_extra_info("peername")[1], own)

    def abort(self) -> None:
        """Break the connection off."""
        self._writer.transport.abort()

    def send_raw(self, data: bytes) -> None:
        """Send bytes; if the daemon is gone, the next read says so."""
        with contextlib.suppress(ConnectionEndedError):
            super().send_raw(data)

    async def read_frame(self, timeout_s: float = PATIENCE_S) -> Frame:
        """The next frame that is no heartbeat.

        Raises:
            LinkEndedError: there is none.
        """
        while True:
            with _ending():
                frame = await super().read_frame(timeout_s)
            if frame != HEARTBEAT:
                return frame
            self.nop()

    async def read_reply(self) -> bytes | None:
        """The data of the next reply, None if it is an error; messages must not come."""
        kind, data = await self.read_frame()
        assert kind in (RESPONSE, ERROR), (kind, data)
        return data if kind == RESPONSE else None


class HttpLink:
    """HTTP/1.1, one request after the other."""

    def __init__(self, client: HttpClient, port: int) -> None:
        self._client = client
        self.port = port

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect.

        Raises:
            LinkEndedError: no daemon listens.
        """
        with _ending():
            client = await HttpClient.connect((HOST, port))
        return cls(client, pair_ports(port, client.local_port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.abort()

    @property
    def read_bytes(self) -> int:
        """How much of replies has been read."""
        return self._client.read_bytes

    async def request(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and body of the reply.

        Raises:
            LinkEndedError: there is none.
        """
        with _ending():
            reply = await self._client.request(method, target, body, timeout_s=PATIENCE_S)
        return reply.status, reply.body
