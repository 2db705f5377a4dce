"""HttpClient: one HTTP/1.1 connection over asyncio streams; what comes back is taken apart."""

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass
from typing import Any, Self

from tests.support.v2_client import PATIENCE_S, Address


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


class HttpClient:
    """A connection that stays open from one request to the next."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

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
        return await asyncio.wait_for(self.read_reply(has_body=method != "HEAD"), PATIENCE_S)

    async def read_reply(self, *, has_body: bool = True) -> Reply:
        """Read one reply whose length is told; a reply to HEAD tells it and has no body."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        length = int(headers["content-length"]) if has_body else 0
        body = await self._reader.readexactly(length)
        return Reply(int(status_line.split(" ")[1]), headers, body)

    async def get(self, target: str) -> Reply:
        """GET."""
        return await self.request("GET", target)

    async def post(self, target: str, body: bytes = b"") -> Reply:
        """POST."""
        return await self.request("POST", target, body)
