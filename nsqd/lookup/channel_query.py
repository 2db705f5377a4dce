"""Ask an nsqlookupd over HTTP which channels a topic has in the cluster.

One GET, one connection, on the event loop: it can be cancelled at any moment, and a silent server
holds up no thread that the disk might need. http.client only takes the reply apart.
"""

import asyncio
import http
import http.client
import io
import json
import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote_plus

from nsqd.protocol.names import is_ephemeral, is_valid_channel_name

MAX_REPLY_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_HOST = re.compile(r"[\w.:%-]{1,255}")


class ChannelQueryError(Exception):
    """The nsqlookupd answered, but not with a list of channels; the text says what."""


@dataclass(frozen=True, slots=True)
class ChannelQuery:
    """How to ask, whoever is asked."""

    connect_timeout_s: float
    ssl_context: ssl.SSLContext | None  # for one that answers over https only

    async def fetch(self, address: tuple[str, int], topic: str) -> list[str]:
        """Return the names of the topic's channels, as they came. The caller bounds the time.

        Raises:
            OSError: it can't be reached.
            ChannelQueryError: its answer is of no use.
        """
        host, port = address
        if not _HOST.fullmatch(host):
            # It comes from a peer, and it goes into a header.
            raise ChannelQueryError(f"bad address {host[:200]!r}")
        status, body = await self._get(host, port, topic, None)
        if status == http.HTTPStatus.FORBIDDEN:
            https_port = _find_https_port(body)
            if https_port is not None:
                context = self.ssl_context or ssl.create_default_context()
                status, body = await self._get(host, https_port, topic, context)
        if status != http.HTTPStatus.OK:
            raise ChannelQueryError(f"status {status}")
        return _read_channels(body)

    async def _get(
        self, host: str, port: int, topic: str, context: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
        except TimeoutError:
            raise TimeoutError(f"no connection in {self.connect_timeout_s:g} s") from None
        except UnicodeError as error:  # a name with a part of more than 63 characters
            raise ChannelQueryError(f"bad address - {error}") from error
        try:
            writer.write(_request(host, port, topic))
            reply = bytearray()
            while data := await reader.read(_READ_BYTES):
                reply += data
                if len(reply) > MAX_REPLY_BYTES:
                    raise ChannelQueryError(f"reply of more than {MAX_REPLY_BYTES} bytes")
        finally:
            writer.transport.abort()
        return _parse(bytes(reply))


def usable_channels(names: Iterable[str]) -> list[str]:
    """Return, in order, the names to make channels of.

    Ephemeral ones are made by their consumers alone. The Go nsqd takes any name, even one that no
    client could subscribe to.
    """
    return sorted(
        {name for name in names if is_valid_channel_name(name) and not is_ephemeral(name)}
    )


def _request(host: str, port: int, topic: str) -> bytes:
    shown = f"[{host}]" if ":" in host else host
    lines = (
        f"GET /channels?topic={quote_plus(topic)} HTTP/1.1",
        f"Host: {shown}:{port}",
        "Accept: application/vnd.nsq; version=1.0",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(lines).encode("ascii", "replace")


class _Received:
    """What http.client needs of a socket to parse a reply that is all there."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parse(reply: bytes) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(cast(socket.socket, _Received(reply)))
    try:
        response.begin()
        return response.status, response.read()
    except (http.client.HTTPException, ValueError) as error:
        raise ChannelQueryError(f"no HTTP reply - {error!r}") from error
    finally:
        response.close()


def _find_https_port(body: bytes) -> int | None:
    """Return where a server that wants https says it is to be found."""
    try:
        port = _decode(body).get("https_port")
    except ChannelQueryError:
        return None
    return port if type(port) is int and 0 < port < 0x10000 else None


def _read_channels(body: bytes) -> list[str]:
    channels = _decode(body).get("channels")
    if channels is None:
        return []
    if not isinstance(channels, list):
        raise ChannelQueryError("channels are not a list")
    return [name for name in channels if isinstance(name, str)]


def _decode(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ChannelQueryError("reply is not JSON") from error
    if not isinstance(fields, dict):
        raise ChannelQueryError("reply is not a JSON object")
    return fields
