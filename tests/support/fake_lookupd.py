"""FakeLookupd: an nsqlookupd on the test's own loop that remembers all it is told.

It answers as it should until a test has it keep silent, answer something else, or hang up. Its two
doors keep their ports when it is stopped and started again.
"""

import asyncio
import contextlib
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field

from nsqd.protocol.lookup import (
    OK,
    Command,
    CommandParser,
    Identify,
    LookupdIdentity,
    NsqdIdentity,
    Ping,
    Register,
    Unregister,
    encode_lookupd_identity,
    encode_reply,
)
from tests.support.waiting import until

HOST = "127.0.0.1"
POLL_S = 0.005


@dataclass(slots=True)
class FakePeer:
    """One connection of an nsqd: what it has said, and what it is registered for."""

    writer: asyncio.StreamWriter
    identity: NsqdIdentity | None = None
    commands: list[Command] = field(default_factory=list)
    names: set[tuple[str, str | None]] = field(default_factory=set)
    # The most commands that came in one piece, before any of them was answered.
    most_at_once: int = 0
    is_open: bool = True

    def hang_up(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()

    def lines(self) -> list[str]:
        """The registrations in the order they came."""
        return [
            " ".join(filter(None, (type(each).__name__.upper(), each.topic, each.channel)))
            for each in self.commands
            if isinstance(each, Register | Unregister)
        ]

    def count(self, kind: type[Command]) -> int:
        """How many commands of a kind have come."""
        return sum(isinstance(command, kind) for command in self.commands)


class FakeLookupd:
    """Both doors, and levers for what may go wrong behind them."""

    def __init__(self) -> None:
        # One for each connection since the beginning.
        self.peers: list[FakePeer] = []
        # The channels that GET /channels tells, by topic; and the requests that came.
        self.channels: dict[str, list[str]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        # Cleared to keep from answering; what is asked meanwhile is answered when it is set again.
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.http_speaks = asyncio.Event()
        self.http_speaks.set()
        # Set to answer something else: the bytes of a reply, or of an HTTP status and body.
        self.answer: Callable[[Command], bytes | None] = lambda _command: None
        self.http_answer: tuple[str, bytes] | None = None
        self.broadcast_address = HOST
        self.tcp_port = 0
        self.http_port = 0
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open both doors."""
        tcp = await asyncio.start_server(self._accept_peer, HOST, self.tcp_port)
        http = await asyncio.start_server(self._accept_http, HOST, self.http_port)
        self._servers = [tcp, http]
        self.tcp_port = tcp.sockets[0].getsockname()[1]
        self.http_port = http.sockets[0].getsockname()[1]

    async def start_https(self, context: ssl.SSLContext) -> int:
        """Open a third door for HTTP, over TLS; return its port."""
        server = await asyncio.start_server(self._accept_http, HOST, 0, ssl=context)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Die: close the doors and cut all connections."""
        for server in self._servers:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def address(self) -> str:
        """Where nsqd registers."""
        return f"{HOST}:{self.tcp_port}"

    @property
    def open_peers(self) -> list[FakePeer]:
        """The connections that are there and identified."""
        return [peer for peer in self.peers if peer.is_open and peer.identity is not None]

    @property
    def known(self) -> set[tuple[str, str | None]]:
        """What is registered now: pairs of topic and channel, None for the topic itself."""
        return set().union(*(peer.names for peer in self.peers if peer.is_open))

    async def wait_for_peer(self) -> FakePeer:
        """Wait until an nsqd has identified itself; return the newest that is there."""
        await until(lambda: self.open_peers)
        return self.open_peers[-1]

    async def wait_for(self, *names: tuple[str, str | None]) -> None:
        """Wait until exactly this is registered."""
        await until(lambda: self.known == set(names))

    def _accept_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serve(self._serve_peer(reader, FakePeer(writer)), writer)

    def _accept_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serve(self._serve_http(reader, writer), writer)

    def _serve(self, work: Coroutine[object, object, None], writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._writers.add(writer)

        def finish(_task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

        task.add_done_callback(finish)

    async def _serve_peer(self, reader: asyncio.StreamReader, peer: FakePeer) -> None:
        parser = CommandParser()
        self.peers.append(peer)
        try:
            while data := await reader.read(1 << 16):
                commands = list(parser.feed(data))
                peer.most_at_once = max(peer.most_at_once, len(commands))
                await self.speaks.wait()
                for command in commands:
                    self._take(peer, command)
                    peer.writer.write(self.answer(command) or self._answer(command))
        except ConnectionError:
            return
        finally:
            peer.is_open = False

    def _take(self, peer: FakePeer, command: Command) -> None:
        peer.commands.append(command)
        match command:
            case Identify(identity):
                peer.identity = identity
            case Register(topic, channel):
                peer.names |= {(topic, None), (topic, channel)}
            case Unregister(topic, None):
                peer.names = {name for name in peer.names if name[0] != topic}
            case Unregister(topic, channel):
                peer.names.discard((topic, channel))
            case Ping():
                pass

    def _answer(self, command: Command) -> bytes:
        if isinstance(command, Identify):
            return encode_lookupd_identity(
                LookupdIdentity(
                    self.broadcast_address, "host", self.http_port, self.tcp_port, "1.3.0"
                )
            )
        return encode_reply(OK)

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        target = first.split(" ")[1]
        self.requests.append((target, headers))
        await self.http_speaks.wait()
        is_secure = writer.get_extra_info("ssl_object") is not None
        if self.http_answer is not None and not is_secure:
            status, body = self.http_answer
        else:
            status, body = "200 OK", self._channels_body(target)
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    def _channels_body(self, target: str) -> bytes:
        url = urllib.parse.urlsplit(target)
        assert url.path == "/channels", target
        [topic] = urllib.parse.parse_qs(url.query)["topic"]
        names = ",".join(f'"{name}"' for name in self.channels.get(topic, []))
        return f'{{"channels":[{names}]}}'.encode()


@contextlib.asynccontextmanager
async def serving_lookupd() -> AsyncIterator[FakeLookupd]:
    """One that serves, and is dead afterwards."""
    fake = FakeLookupd()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
