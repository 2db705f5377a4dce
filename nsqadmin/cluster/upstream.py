"""Upstream: the calls to nsqds and nsqlookupds, each with a bound in time, size and number.

Reads go out 64 at a time, writes 16; nodes that failed the last time have 32 places of their own,
and those that hang keep nobody else waiting. An answer is JSON or an error with a text for
operators. The bearer tokens are added here and nowhere else; error texts never quote a header or
body.
"""

import asyncio
import dataclasses
import fnmatch
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nsqd.config.token_file import TokenFile
from nsqd.http.client import BadReplyError, ClientLimits, HttpClient, Reply, Url, UrlError
from nsqd.runtime.listen import split_address

MAX_READS: Final = 64
MAX_DOUBTFUL_READS: Final = 32
MAX_WRITES: Final = 16
# A reply of more, the /stats of 35,000 queues, is asked for again with the higher bound, two at a
# time: 64 nodes that send the largest answers allowed would take 4 GB otherwise.
MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
MAX_LARGE_REPLY_BYTES: Final = 64 * 1024 * 1024
MAX_LARGE_READS: Final = 2
# One for each node of a large cluster, so that a round connects to none of them anew.
MAX_IDLE_CONNECTIONS: Final = 1024
IDLE_TIMEOUT_S: Final = 90.0
_MAX_ERROR_CHARS: Final = 300
_TOO_LARGE: Final = f"reply of more than {MAX_REPLY_BYTES} bytes"


class UpstreamError(Exception):
    """A daemon gave no usable answer; the text says why, without its address.

    `status` is that of its reply, 0 if there was none.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens for HTTP."""

    host: str  # an IPv6 address has no brackets
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read host:port.

        Raises:
            ValueError: it is none.
        """
        pair = split_address(text)
        if pair is None or not pair[0] or not 0 < pair[1] < 0x10000:
            raise ValueError("not host:port")
        return cls(*pair)


class UpstreamTokens:
    """The bearer tokens for nsqds and nsqlookupds, and which nsqds get theirs."""

    def __init__(
        self,
        *,
        nsqd: TokenFile | None = None,
        nsqd_hosts: Sequence[str] = (),
        lookupd: TokenFile | None = None,
    ) -> None:
        """Args: nsqd_hosts: names, or patterns such as *.example; none: all nodes."""
        self._nsqd = nsqd
        self._nsqd_hosts = tuple(host.lower() for host in nsqd_hosts)
        self._lookupd = lookupd

    def headers_for(self, address: Address, *, is_node: bool) -> dict[str, str]:
        """Return the header for a daemon, none if it must not see a token."""
        file = self._nsqd if is_node else self._lookupd
        if file is None or (is_node and not self._is_trusted(address.host.lower())):
            return {}
        return {"Authorization": f"Bearer {file.token.decode()}"}

    def _is_trusted(self, host: str) -> bool:
        hosts = self._nsqd_hosts
        return not hosts or any(fnmatch.fnmatchcase(host, each) for each in hosts)


class Upstream:
    """Questions and commands to daemons. `close` at the end."""

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        request_timeout_s: float,
        tokens: UpstreamTokens,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Args: ssl_context: for https; None trusts the system's authorities."""
        limits = ClientLimits(
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            max_body_bytes=MAX_REPLY_BYTES,
            max_idle_connections=MAX_IDLE_CONNECTIONS,
            idle_timeout_s=IDLE_TIMEOUT_S,
        )
        self._client = HttpClient(limits, ssl_context=ssl_context)
        large = dataclasses.replace(
            limits, max_body_bytes=MAX_LARGE_REPLY_BYTES, max_idle_connections=0
        )
        self._large_client = HttpClient(large, ssl_context=ssl_context)
        self._tokens = tokens
        self._reads = asyncio.Semaphore(MAX_READS)
        self._doubtful_reads = asyncio.Semaphore(MAX_DOUBTFUL_READS)
        self._large_reads = asyncio.Semaphore(MAX_LARGE_READS)
        self._writes = asyncio.Semaphore(MAX_WRITES)

    async def get(
        self, address: Address, target: str, *, is_node: bool = False, is_doubtful: bool = False
    ) -> object:
        """Return the JSON that a daemon answers.

        Args:
            is_node: whether it is an nsqd, which may want the token.
            is_doubtful: whether it failed the last time.

        Raises:
            UpstreamError: there is none.
        """
        places = self._doubtful_reads if is_doubtful else self._reads
        reply = await self._read(address, target, is_node=is_node, places=places)
        if reply.status != 200:
            raise UpstreamError(_describe_refusal(reply), reply.status)
        try:
            return reply.json()
        except BadReplyError as error:
            raise UpstreamError(str(error)) from error

    async def get_value(self, address: Address, target: str) -> object:
        """Return the answer of an nsqd: JSON, or a text that is none.

        Raises:
            UpstreamError: there is no answer.
        """
        reply = await self._read(address, target, is_node=True, places=self._reads)
        if reply.status != 200:
            raise UpstreamError(_describe_refusal(reply), reply.status)
        try:
            return reply.json()
        except BadReplyError:
            return clean(reply.body[:_MAX_ERROR_CHARS].decode("utf-8", "replace"))

    async def send(
        self,
        method: str,
        address: Address,
        target: str,
        body: bytes = b"",
        *,
        is_node: bool = True,
    ) -> bytes:
        """Tell a daemon to do something; return the body of its answer.

        Raises:
            UpstreamError: it refused, or nothing was heard of it.
        """
        async with self._writes:
            reply = await self._request(method, address, target, body, is_node=is_node)
        if reply.status != 200:
            raise UpstreamError(_describe_refusal(reply), reply.status)
        return reply.body

    def close(self) -> None:
        """Cut all connections."""
        self._client.close()
        self._large_client.close()

    async def _read(
        self, address: Address, target: str, *, is_node: bool, places: asyncio.Semaphore
    ) -> Reply:
        try:
            async with places:
                return await self._request("GET", address, target, b"", is_node=is_node)
        except UpstreamError as error:
            if error.text != _TOO_LARGE:
                raise
        async with self._large_reads:
            return await self._request("GET", address, target, b"", is_node=is_node, is_large=True)

    async def _request(
        self,
        method: str,
        address: Address,
        target: str,
        body: bytes,
        *,
        is_node: bool,
        is_large: bool = False,
    ) -> Reply:
        headers = self._tokens.headers_for(address, is_node=is_node)
        client = self._large_client if is_large else self._client
        try:
            url = Url("http", address.host, address.port, target)
            return await client.request_v1(method, url, body=body, headers=headers)
        except (OSError, BadReplyError, UrlError) as error:
            raise UpstreamError(describe_error(error)) from error


def describe_error(error: Exception) -> str:
    """Return why a daemon gave no answer, in a few words."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError) and not error.args:
        return "timed out"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return clean(str(error) or type(error).__name__)


def clean(text: str) -> str:
    """Return a text from outside as one line of bounded length."""
    line = "".join(char if char.isprintable() else " " for char in text[:_MAX_ERROR_CHARS])
    return line.strip()


def _describe_refusal(reply: Reply) -> str:
    """Return the words of a daemon that refused."""
    text = ""
    try:
        fields = reply.json()
        if isinstance(fields, dict):
            text = str(fields.get("message", ""))
    except BadReplyError:
        text = reply.body[:_MAX_ERROR_CHARS].decode("utf-8", "replace")
    return f"HTTP {reply.status} {clean(text)}".strip()
