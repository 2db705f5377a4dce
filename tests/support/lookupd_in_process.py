"""An nsqlookupd in a thread, on ports of its own, and blocking clients for its two doors."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from lookupd.daemon import Daemon
from lookupd.options import Options
from nsqd.protocol.lookup import MAGIC, NsqdIdentity, encode_identify
from tests.support.http_client import Reply, fetch
from tests.support.waiting import PATIENCE_S

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class LookupdInProcess:
    """A context manager: the daemon serves within it, and has ended with code 0 after it."""

    def __init__(
        self,
        loop_factory: LoopFactory,
        *,
        command_timeout_s: float = 30.0,
        read_options: Callable[[], Options] | None = None,
        **options: Any,
    ) -> None:
        addresses = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        self.daemon = Daemon(
            Options(**{**addresses, "broadcast_address": "here", **options}),
            read_options,
            command_timeout_s=command_timeout_s,
        )
        self._loop_factory = loop_factory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = threading.Event()
        self._outcome: int | BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(PATIENCE_S), "nsqlookupd did not start"
        if isinstance(self._outcome, BaseException):
            self._thread.join(PATIENCE_S)
            raise self._outcome
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.daemon.ending.request)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "nsqlookupd did not stop"
        if error is None:
            assert self._outcome == 0

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            try:
                self._outcome = runner.run(self._serve())
            except Exception as error:  # noqa: BLE001 - handed over to the test's thread
                self._outcome = error
            finally:
                self._is_ready.set()

    async def _serve(self) -> int:
        self._loop = asyncio.get_running_loop()
        try:
            await self.daemon.start()
            self._is_ready.set()
            return await self.daemon.ending.wait()
        finally:
            await self.daemon.close()

    def reload(self) -> None:
        """Have it read its files again, as SIGHUP does."""
        assert self._loop is not None
        is_done = threading.Event()

        def reload() -> None:
            self.daemon.reload()
            is_done.set()

        self._loop.call_soon_threadsafe(reload)
        assert is_done.wait(PATIENCE_S)

    def connect(self) -> socket.socket:
        """Open a bare TCP connection."""
        return socket.create_connection(("127.0.0.1", self.daemon.tcp_port), PATIENCE_S)

    def peer(self, *, magic: bytes = MAGIC) -> "LookupPeer":
        """Open a connection and send the magic."""
        return LookupPeer(self.connect(), magic)

    def nsqd(self, name: str = "peer.example") -> "LookupPeer":
        """Open a connection of an identified nsqd."""
        peer = self.peer()
        peer.identify(NsqdIdentity(name, 5150, 5151, "1.3.0", "host", "zone", "region"))
        return peer

    def request(self, method: str, target: str) -> Reply:
        """Make one HTTP request."""
        return fetch(("127.0.0.1", self.daemon.http_port), method, target)

    def get(self, target: str) -> Any:
        """GET something that must be JSON with status 200."""
        reply = self.request("GET", target)
        assert reply.status == 200, reply
        return reply.json()

    def post(self, target: str) -> None:
        """POST something that must be answered with an empty 200."""
        reply = self.request("POST", target)
        assert (reply.status, reply.body) == (200, b"")


class LookupPeer:
    """The other end of a V1 connection."""

    def __init__(self, connection: socket.socket, magic: bytes) -> None:
        self.socket = connection
        self.socket.sendall(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """This end of the connection as nsqlookupd shows it."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def identify(self, identity: NsqdIdentity) -> Any:
        """IDENTIFY and return the decoded reply."""
        self.send(encode_identify(identity))
        return json.loads(self.read_reply())

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def command(self, line: bytes) -> bytes:
        """Send one line, without its end, and return the reply."""
        self.send(line + b"\n")
        return self.read_reply()

    def read_reply(self) -> bytes:
        """Read one reply."""
        (size,) = struct.unpack(">i", self.read_exactly(4))
        return self.read_exactly(size)

    def is_closed_by_server(self) -> bool:
        """Wait for the end of the connection; False if something else comes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close this end."""
        self.socket.close()

    def read_exactly(self, size: int) -> bytes:
        """Read so many bytes."""
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk, f"closed after {bytes(data[:100])!r}, {size} bytes expected"
            data += chunk
        return bytes(data)
