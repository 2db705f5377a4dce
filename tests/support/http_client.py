"""HTTP/1.1 for tests: HttpClient keeps a connection on the test's loop, `fetch` needs no loop."""

import asyncio
import contextlib
import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any, Self

from tests.support.v2_client import Address
from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """The status and code of an error, which must look as nsqd's do."""
        assert self.headers["content-type"] == "application/json; charset=utf-8"
        [(key, code)] = self.json().items()
        assert key == "message"
        return self.status, code


def fetch(
    address: tuple[str, int],
    method: str,
    target: str,
    body: bytes | None = None,
    *,
    headers: dict[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Reply:
    """Make one request on a connection of its own, for tests without a loop."""
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=timeout_s)) as connection:
        connection.request(method, target, body, headers or {})
        reply = connection.getresponse()
        names = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, names, reply.read())


class HttpClient:
    """A connection that stays open from one request to the next."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.read_bytes = 0  # of whole replies, since the beginning

    @classmethod
    async def connect(cls, address: Address, *, context: ssl.SSLContext | None = None) -> Self:
        """Connect, with TLS if there is a context for it."""
        if isinstance(address, str):
            return cls(*await asyncio.open_unix_connection(address))
        return cls(*await asyncio.open_connection(*address, ssl=context))

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def local_port(self) -> int:
        """This end."""
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    def abort(self) -> None:
        """Break the connection off."""
        self._writer.transport.abort()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        chunks: list[bytes] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Reply:
        """Make a request and read the reply."""
        lines = [f"{method} {target} HTTP/1.1", "Host: nsqd.example"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if chunks is not None:
            lines.append("Transfer-Encoding: chunked")
            body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
            body += b"0\r\n\r\n"
        elif body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        async with asyncio.timeout(timeout_s):
            return await self.read_reply(has_body=method != "HEAD")

    async def read_reply(self, *, has_body: bool = True) -> Reply:
        """Read one reply whose length is told; a reply to HEAD tells it and has no body."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        length = int(headers["content-length"]) if has_body and " 304 " not in status_line else 0
        body = await self._reader.readexactly(length)
        self.read_bytes += len(head) + length
        return Reply(int(status_line.split(" ")[1]), headers, body)

    async def get(self, target: str) -> Reply:
        """GET."""
        return await self.request("GET", target)

    async def post(self, target: str, body: bytes = b"") -> Reply:
        """POST."""
        return await self.request("POST", target, body)
