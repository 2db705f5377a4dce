"""The door for nsqd: TCP connections that speak the V1 protocol and change the registry.

`PeerServer` owns the set of connections, each `PeerConnection` its parser
and its peer in the registry. As in the Go nsqlookupd, a peer may be silent for as long as it likes:
dead ones are found by TCP keep-alive and hidden by the registry meanwhile. Only a command that has
begun must end in time, and replies must be read.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import cast

from lookupd.registry import Peer, Registry
from nsqd.config.token_file import TokenFile
from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.lookup import (
    OK,
    Command,
    CommandParser,
    Identify,
    LookupdIdentity,
    Ping,
    Register,
    Unregister,
    encode_lookupd_identity,
    encode_reply,
)
from nsqd.runtime.listen import format_address, serve
from nsqd.runtime.turns import running_turns

logger = logging.getLogger(__name__)

# The time from a command's first byte to its last; the magic counts from the connection.
COMMAND_TIMEOUT_S = 30.0
# The time that a peer has to read the last replies before it is cut off.
CLOSE_TIMEOUT_S = 5.0
# The most input of one turn of the event loop: some 500 REGISTERs, about 2 ms of work.
READ_BYTES = 16 * 1024

_OK_REPLY = encode_reply(OK)


class PeerServer:
    """Accept peers; count their connections, commands and errors."""

    def __init__(
        self,
        registry: Registry,
        *,
        clock: Callable[[], float],
        command_timeout_s: float = COMMAND_TIMEOUT_S,
        max_connections: int = 0,
        token_file: TokenFile | None = None,
    ) -> None:
        """Args:
        max_connections: further ones are closed at once; 0 is no limit.
        token_file: has the token that a peer must identify itself with.
        """
        self.registry = registry
        self.max_connections = max_connections
        self.token_file = token_file
        self.clock = clock
        self.command_timeout_s = command_timeout_s
        self.connections: set[PeerConnection] = set()
        self.accepted_count = 0
        # By verb, and by error code.
        self.command_counts: Counter[str] = Counter()
        self.error_counts: Counter[str] = Counter()
        # One buffer for all: the loop fills it and hands it over in the same call, and the parser
        # copies. Thousands of idle connections then cost no buffers.
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.identify_reply = b""
        self._server: asyncio.Server | None = None

    async def serve(self, listener: socket.socket, identity: LookupdIdentity) -> None:
        """Begin to accept connections and answer IDENTIFY with this identity."""
        assert self._server is None, "a server serves once"
        self.identify_reply = encode_lookupd_identity(identity)
        self._server = await serve(listener, lambda: PeerConnection(self))

    async def close(self) -> None:
        """Stop accepting and drop all connections. It may be called at any time."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()


class PeerConnection(asyncio.BufferedProtocol):
    """One connection: commands in, replies out, in order."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._parser = CommandParser()
        self._peer: Peer | None = None
        self._remote_address = ""
        self._transport: asyncio.Transport | None = None
        # Whether the peer leaves replies unread.
        self._is_deaf = False
        # Runs while the peer owes the rest of a command, or has yet to read our replies.
        self._timer: asyncio.TimerHandle | None = None
        # A log call that is filtered out still costs as much as a REGISTER.
        self._is_debug = logger.isEnabledFor(logging.DEBUG)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast(asyncio.Transport, transport)
        self._remote_address = format_address(transport.get_extra_info("peername"))
        connections = self._server.connections
        connections.add(self)
        self._server.accepted_count += 1
        if 0 < self._server.max_connections < len(connections):
            logger.warning("TCP: too many connections, refusing %s", self._remote_address)
            self.abort()
            return
        self._watch(has_progress=True)
        logger.info("TCP: new client(%s)", self._remote_address)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        replies: list[bytes] = []
        error: FatalClientError | None = None
        try:
            for command in self._parser.feed(self._server.read_buffer[:nbytes]):
                replies.append(self._carry_out(command))  # noqa: PERF401 - kept if feed() raises
        except FatalClientError as caught:
            error = caught
        self._reply(replies, error)
        if error is None and not self._is_deaf:
            self._watch(has_progress=bool(replies))
            if nbytes == READ_BYTES:  # libuv would read up to 31 times more in this turn
                assert self._transport is not None
                self._transport.pause_reading()
                running_turns().share(self._read_on)

    def _read_on(self) -> bool:
        """Read the next buffer, in turn with other peers."""
        assert self._transport is not None
        if not self._is_deaf and not self._transport.is_closing():
            self._transport.resume_reading()
        return False

    def eof_received(self) -> bool:
        try:
            self._parser.feed_eof()
        except FatalClientError as error:
            self._reply([], error)
        else:
            self._close()
        return False

    def pause_writing(self) -> None:
        # A peer that does not read its replies may not ask for more of them.
        assert self._transport is not None
        self._is_deaf = True
        self._transport.pause_reading()
        if not self._transport.is_closing():
            self._start_timer(self._time_out_deaf)

    def resume_writing(self) -> None:
        assert self._transport is not None
        self._is_deaf = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._stop_timer()
            self._watch(has_progress=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._stop_timer()
        if self._peer is not None:
            self._server.registry.remove_peer(self._peer)
            self._peer = None
        reason = f" - {exc}" if exc is not None else ""
        logger.info("TCP: client(%s) disconnected%s", self._remote_address, reason)

    # Called by the server.

    def abort(self) -> None:
        """Drop the connection, with the output that could not be written."""
        assert self._transport is not None
        self._transport.abort()

    def _carry_out(self, command: Command) -> bytes:
        server = self._server
        verb = type(command).__name__.upper()
        server.command_counts[verb] += 1
        if self._is_debug:
            logger.debug("CLIENT(%s): %s", self._remote_address, command)
        match command:
            case Ping():
                if self._peer is not None:
                    server.registry.touch(self._peer, now=server.clock())
            case Identify(identity, token):
                if server.token_file is not None and not server.token_file.matches(token.encode()):
                    raise FatalClientError(
                        ErrorCode.E_UNAUTHORIZED, "IDENTIFY needs the token of this nsqlookupd"
                    )
                self._peer = server.registry.add_peer(
                    self._remote_address, identity, now=server.clock()
                )
                logger.info(
                    "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
                    self._remote_address,
                    identity.broadcast_address,
                    identity.tcp_port,
                    identity.http_port,
                    identity.version,
                )
                return server.identify_reply
            case Register(topic, channel):
                assert self._peer is not None, "the parser refuses REGISTER before IDENTIFY"
                server.registry.register(self._peer, topic, channel)
            case Unregister(topic, channel):
                assert self._peer is not None, "the parser refuses UNREGISTER before IDENTIFY"
                server.registry.unregister(self._peer, topic, channel)
        return _OK_REPLY

    def _reply(self, replies: list[bytes], error: FatalClientError | None) -> None:
        assert self._transport is not None
        if error is not None:
            replies.append(encode_reply(error.frame_data))
        if replies:
            self._transport.write(b"".join(replies))
        if error is not None:
            self._server.error_counts[error.code.value] += 1
            logger.warning("CLIENT(%s): %s", self._remote_address, ascii(str(error)[:200])[1:-1])
            self._close()

    def _close(self) -> None:
        """Close once all replies are written, or when the peer takes too long to read them."""
        assert self._transport is not None
        self._transport.close()
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def _watch(self, *, has_progress: bool) -> None:
        """Keep the timer running while a command is incomplete, from when that one began."""
        if self._timer is not None and (has_progress or not self._parser.is_mid_command):
            self._stop_timer()
        if self._timer is None and self._parser.is_mid_command:
            self._start_timer(self._time_out)

    def _start_timer(self, callback: Callable[[], None]) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._server.command_timeout_s, callback)

    def _time_out_deaf(self) -> None:
        self._timer = None
        logger.warning("CLIENT(%s): does not read its replies", self._remote_address)
        self.abort()

    def _time_out(self) -> None:
        self._timer = None
        logger.warning(
            "CLIENT(%s): command not complete after %g s",
            self._remote_address,
            self._server.command_timeout_s,
        )
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
