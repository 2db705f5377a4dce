"""The V2 protocol over TCP and unix sockets: commands in, frames out.

`V2Connection` is one client: a publisher, a consumer, or both. It feeds the parser, hands each
command to its handler (nsqd.tcp.handlers), and decides how the connection ends. It is also the
`Sink` of its consumer. The transport sends written bytes at the end of the loop turn, so output
buffering is never a delay: the buffer sizes and timeouts that clients negotiate are upper bounds
that hold without a timer.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from ssl import SSLContext, SSLError
from time import perf_counter as clock
from typing import Final, cast

from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.protocol import commands, frames
from nsqd.protocol.command_lines import CommandLimits
from nsqd.protocol.command_parser import MAGIC, CommandParser, LineTooLongError
from nsqd.protocol.commands import Admission
from nsqd.protocol.compression import CompressionError
from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.frames import FrameType, encode_frame, encode_messages
from nsqd.protocol.identify import ClientSettings, IdentifyLimits
from nsqd.runtime.descriptors import TCP_RESERVE_COUNT, Descriptors
from nsqd.runtime.door_counts import DoorCounts, Failure
from nsqd.runtime.listen import format_address
from nsqd.runtime.turns import running_turns
from nsqd.tcp import handlers
from nsqd.tcp.auth import AuthServers, ClientAuth
from nsqd.tcp.end_counts import count_fatal_error
from nsqd.tcp.handlers import HANDLERS, Replies
from nsqd.tcp.read_gate import PauseReason, ReadGate
from nsqd.tcp.stream import ClientStream, TlsEndedError, TlsRefusedError

logger = logging.getLogger(__name__)

# After a fatal error the client's input is read and dropped this long, so that closing with input
# unread does not reset the connection and destroy the replies and the error frame on their way.
LINGER_S = 1.0
TLS_HANDSHAKE_S = 5.0
# With more bytes than this unsent, a consumer is not given messages.
WRITE_BUFFER_HIGH_BYTES = 256 * 1024
# uvloop's buffer. libuv reads on in the same turn after a read that has filled it.
FULL_READ_BYTES = 256_000
# A deadline this near counts as reached: the second heartbeat and the deadline are one moment.
DEADLINE_SLACK_S = 0.05
# A client without heartbeats is looked at this often. A command that it has begun has to be
# complete within two such intervals, as with the default heartbeats.
SILENT_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """Shared by all connections of the TCP server: options, auth servers, the set of them."""

    commands: CommandLimits
    identify: IdentifyLimits
    max_req_ms: int
    handshake_timeout_s: float
    max_connections: int = 0  # 0 = no limit
    ssl_context: SSLContext | None = None
    is_tls_required: bool = False
    is_topology_aware: bool = False
    auth_servers: AuthServers | None = None  # None: clients need no AUTH
    # Called once per read: the event loop polls more often under dense traffic.
    on_read: Callable[[], object] | None = None
    connections: set["V2Connection"] = field(default_factory=set)
    counts: DoorCounts = field(default_factory=DoorCounts)
    descriptors: Descriptors | None = None  # None: they are not watched


class Phase(Enum):
    """How near a connection is to its end."""

    OPEN = auto()  # commands are run, messages delivered
    LAST_REPLIES = auto()  # the client has sent its last byte: closed when its replies are sent
    FAILED = auto()  # a fatal error, or the end, waits behind other replies: lingers when sent
    LINGERING = auto()  # all is sent, input is dropped: closed after LINGER_S
    CLOSED = auto()  # closed or aborted


# CPython 3.11 takes 0.1 us to find a member in its Enum, and this one is needed for each command.
_OPEN: Final = Phase.OPEN
_TURN: Final = PauseReason.TURN
_UNLOGGED: Final = (commands.MultiPublishBegun, commands.Progress)


class Due(Enum):
    """The task of a connection when its timer fires."""

    MAGIC = auto()  # the client has not sent the four bytes of its protocol: abort
    TLS = auto()  # the TLS handshake takes too long: refuse it
    HEARTBEAT = auto()  # send one, unless the client shows no sign of life
    LINGER = auto()  # the client has had its time to read the error: close
    CLOSE = auto()  # the client does not read the rest after the close: abort


class Vitality(Enum):
    """The condition of a client when a heartbeat is due."""

    ALIVE = auto()
    SILENT = auto()  # it sent no command for two heartbeat intervals
    DEAF = auto()  # it did not read for one heartbeat interval


class Deadlines:
    """The one timer of a connection, and the signs of life that it is about.

    A connection has one deadline at a time, and `Due` says which. Reads only note the time, so a
    busy client never touches its timer: the heartbeat looks at the notes.
    """

    __slots__ = ("_interval_s", "_loop", "_on_due", "_timer", "has_heartbeats", "heard_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[Due], object]) -> None:
        """Count the client as heard now.

        Args:
            on_due: called when the timer fires, with the reason that it was set for.
        """
        self.heard_at = loop.time()  # set by the connection, too
        self._loop = loop
        self._on_due: Callable[[Due], object] | None = on_due
        self.has_heartbeats = False
        self._interval_s = SILENT_INTERVAL_S
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: Due, delay_s: float) -> None:
        """Have this deadline instead of the one before."""
        self.clear()
        if self._on_due is not None:
            self._timer = self._loop.call_later(delay_s, self._on_due, due)

    def clear(self) -> None:
        """Have no deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start_heartbeats(self, interval_ms: int) -> None:
        """Count the client as heard now, and make heartbeats due.

        Args:
            interval_ms: 0 for none; the client is still looked at, as if there were some.
        """
        self.heard_at = self._loop.time()
        self.has_heartbeats = interval_ms > 0
        self._interval_s = interval_ms / 1000 or SILENT_INTERVAL_S
        self.await_heartbeat()

    def await_tls(self) -> None:
        """Give the client the time of a TLS handshake."""
        self.set(Due.TLS, TLS_HANDSHAKE_S)

    def await_heartbeat(self) -> None:
        """Make the next heartbeat due."""
        self.set(Due.HEARTBEAT, self._interval_s)

    def examine(self, *, is_client_heard: bool, stalled_at: float | None) -> Vitality:
        """Say how the client is when a heartbeat is due.

        Args:
            is_client_heard: it was listened to; otherwise its silence means nothing.
            stalled_at: since when it does not read, None if it does.
        """
        now = self._loop.time()
        if stalled_at is not None and now - stalled_at >= self._interval_s:
            return Vitality.DEAF
        limit_s = 2 * self._interval_s - DEADLINE_SLACK_S
        if is_client_heard and now - self.heard_at >= limit_s:
            return Vitality.SILENT
        return Vitality.ALIVE

    def close(self) -> None:
        """Have no deadline any more, and let go of the callback: it refers to the connection."""
        self.clear()
        self._on_due = None


class V2Connection(asyncio.Protocol):
    """One client."""

    # Made when the transport is there.
    stream: ClientStream
    replies: Replies
    gate: ReadGate

    def __init__(self, broker: Broker, server: TcpSettings) -> None:
        self.broker = broker
        self.server = server
        self.settings = ClientSettings.initial(server.identify, "")
        self.consumer: Consumer | None = None
        self.channel: Channel | None = None
        self.auth = ClientAuth(server.auth_servers)
        self.pub_counts: dict[str, int] = {}
        self.connected_at_s = int(time.time())
        self.remote_address = ""
        self.remote_ip = ""
        self.parser = CommandParser(
            server.commands, Admission(is_tls_missing=server.is_tls_required)
        )
        self._loop = asyncio.get_running_loop()
        self._turns = running_turns()
        self.deadlines = Deadlines(self._loop, self._on_deadline)
        self._transport: asyncio.Transport
        self._phase = Phase.OPEN
        self._magic: bytes | None = b""  # the part that has come, None when it is complete
        self._parked: commands.Command | None = None  # waits; the commands behind it do too
        # Shortcut for a lone PUB: only without AUTH and without DEBUG logging.
        self._has_shortcut = server.auth_servers is None and not logger.isEnabledFor(logging.DEBUG)

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the magic, unless there are too many connections."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self.stream = ClientStream(self._transport, self._turns, self._take, self._on_output)
        self.gate = ReadGate(self._transport, self._turns, self._go_on)
        self.replies = Replies(self.stream, self.gate, self._on_settled)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        self.remote_ip, self.remote_address = _find_peer(self._transport)
        self.settings = ClientSettings.initial(self.server.identify, self.remote_ip)
        connections = self.server.connections
        connections.add(self)
        if 0 < self.server.max_connections < len(connections):
            logger.warning("TCP: too many connections, refusing %s", self.remote_address)
            self._abort(Failure.TOO_MANY)
            return
        descriptors = self.server.descriptors
        if descriptors is not None and descriptors.is_scarce(transport, TCP_RESERVE_COUNT):
            self._abort(Failure.NO_DESCRIPTORS)
            return
        self.deadlines.set(Due.MAGIC, self.server.handshake_timeout_s)
        logger.info("TCP: new client(%s)", self.remote_address)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket and run their commands, those of a slice at once."""
        if self._phase is not _OPEN:
            return
        parser = self.parser
        try:
            is_plain = self.stream.is_plain
            if (
                is_plain
                and self._has_shortcut
                and (body := parser.find_lone_publish(data)) is not None
            ):
                handlers.publish_alone(self, parser.pub_topic, body)
            else:
                if not is_plain:
                    self.stream.feed(data)
                elif self._magic is None:
                    parser.feed(data)
                else:
                    self._take(data)
                is_left = self._turns.do_now(self._run_slice)
                # libuv would read up to 31 times more in this turn after a full read.
                if is_left or len(data) >= FULL_READ_BYTES:
                    self.gate.pause(_TURN)
        except Exception as error:  # noqa: BLE001 - any error of one client ends that client only
            self._give_up(error)
        if not parser.is_dragging:  # as in nsqd, a command has the time of two heartbeats
            self.deadlines.heard_at = self._loop.time()
        if self.server.on_read is not None:
            self.server.on_read()

    def eof_received(self) -> bool:
        """Answer a client that stops in the middle of a body; leave, or wait for its replies.

        A thousand clients may go at once. To let go of one takes 20 us here and 30 us in the event
        loop, so each leaves in a turn that has time for it. True keeps the transport until then.
        """
        error = self.parser.error_at_eof
        if self._phase is Phase.OPEN and error is not None:
            self._fail(error)
        elif self.replies.has_unsent:
            self._phase = Phase.LAST_REPLIES
        else:
            self._end(Phase.CLOSED)
            self._turns.share(self._depart)
        return True

    def _depart(self) -> bool:
        """Let go of a client that has sent its last byte; return False: there is no more to do."""
        if self.stream.unsent_bytes:
            self.close()
        else:
            self.connection_lost(None)
            self._transport.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the channel and drop every reference that closes a circle, once."""
        if self not in self.server.connections:
            return
        logger.info("client(%s) - exiting", self.remote_address)
        self._end(Phase.CLOSED)
        self.server.connections.remove(self)
        # The garbage collector is off: these refer to the connection, and it to them.
        self.deadlines.close()
        self.stream.close()
        self.replies.close()
        if self.channel is not None and self.consumer is not None:
            self.channel.unsubscribe(self.consumer)

    def pause_writing(self) -> None:
        """Deliver no more messages: the client does not read those it got."""
        self.replies.stalled_at = self._loop.time()
        self.stream.outgoing.hold()
        if self.consumer is not None:
            self.consumer.is_writable = False

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self.replies.stalled_at = None
        self.deadlines.heard_at = self._loop.time()
        self.stream.outgoing.go_on()
        self.gate.lift(PauseReason.UNREAD)
        self._on_output()

    def _on_output(self) -> None:
        """Run no commands and deliver nothing while bytes wait to be encoded; then go on."""
        is_busy = self.stream.outgoing.is_busy
        if is_busy:
            self.gate.pause(PauseReason.OUTPUT)
        elif self.gate.lift(PauseReason.OUTPUT):
            self.deadlines.heard_at = self._loop.time()
        if self.consumer is not None and self.channel is not None and self._phase is Phase.OPEN:
            self.consumer.is_writable = not is_busy and self.replies.stalled_at is None
            self.channel.wake(self.consumer)
        self._go_on_when_replied()

    # --- output

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        """Send messages."""
        self.stream.write_messages(encode_messages(heads, ids, bodies), bodies)

    def _on_settled(self) -> None:
        """Send the replies of publishes that are durable now.

        No error may escape: other clients wait for the same sync, and are told after this one.
        """
        try:
            failure = self.replies.send_settled()
            if failure is not None:
                logger.warning("client(%s) - %s", self.remote_address, failure)
                count_fatal_error(self.server.counts, failure)
                self._end(Phase.FAILED)
            if self.gate.reasons or self._phase is not _OPEN:
                self._go_on_when_replied()
        except Exception as error:  # noqa: BLE001 - any error of one client ends that client only
            self._give_up(error)
        # Its silence counts from here on: until now it waited for the answer.
        self.deadlines.heard_at = self._loop.time()
        if self.gate.reasons and not self.replies.is_full:
            self.gate.lift(PauseReason.DISK)

    # --- commands

    def _take(self, data: bytes) -> None:
        """Hand bytes that are decrypted and decompressed to the parser, those after the magic."""
        if self._magic is not None:
            self._magic += data
            if len(self._magic) < len(MAGIC):
                return
            if not self._magic.startswith(MAGIC):
                raise FatalClientError(ErrorCode.E_BAD_PROTOCOL)
            data = self._magic[len(MAGIC) :]
            self._magic = None
            self.deadlines.start_heartbeats(self.settings.heartbeat_interval_ms)
        self.parser.feed(data)

    def _go_on(self) -> bool:
        """Run the next slice of a read; return whether commands are left."""
        if self._phase is not _OPEN:
            return False
        try:
            is_left = self._run_slice(self._turns.slice_end())
        except Exception as error:  # noqa: BLE001 - any error of one client ends that client only
            self._give_up(error)
            return False
        if not self.parser.is_dragging:
            self.deadlines.heard_at = self._loop.time()
        return is_left

    def _run_slice(self, end: float) -> bool:
        """Run commands until the slice ends, or one has to wait; return whether some are left."""
        stream = self.stream
        while self._run_commands(end):
            if stream.is_plain or not stream.has_pending:
                return False
            stream.feed(b"")
            if clock() >= end:
                break
        return self.parser.has_more or stream.has_pending

    def _run_commands(self, end: float) -> bool:
        """Run the commands that are there until the slice ends; reply in one write.

        Returns:
            Whether the parser has no more.
        """
        next_command = self.parser.next_command
        is_logged = logger.isEnabledFor(logging.DEBUG)
        has_rights = self.auth.state is not None
        try:
            while self._parked is None and self._phase is _OPEN:
                command = next_command()
                if command is None:
                    return True
                if is_logged and type(command) not in _UNLOGGED:
                    text = commands.describe(command)
                    logger.debug("PROTOCOL(V2): [%s] %s", self.remote_address, text)
                if has_rights and handlers.must_renew_rights(self, command):
                    handlers.ask_auth_server(self, command)
                else:
                    HANDLERS[type(command)](self, command)
                if clock() >= end:
                    break
            return False
        finally:
            self.replies.flush()

    def park(self, command: commands.Command, reason: PauseReason) -> None:
        """Run no more commands until `proceed`: this one has to wait."""
        self._parked = command
        self.gate.pause(reason)

    def proceed(self, reason: PauseReason, run: Callable[[commands.Command], object]) -> None:
        """Run the parked command, then the commands behind it.

        Args:
            reason: why it was parked.
            run: runs the parked command.
        """
        if self._phase is not _OPEN:
            return
        command, self._parked = self._parked, None
        assert command is not None, "no command is parked"
        self.gate.lift(reason)
        self.deadlines.heard_at = self._loop.time()
        try:
            run(command)
            self.replies.flush()
            if self._run_slice(self._turns.slice_end()):
                self.gate.pause(_TURN)
        except Exception as error:  # noqa: BLE001 - any error of one client ends that client only
            self._give_up(error)

    # --- deadlines

    def _on_deadline(self, due: Due) -> None:
        match due:
            case Due.MAGIC:
                self._abort(Failure.MAGIC)
            case Due.TLS:
                self._give_up(TlsRefusedError("timeout"))
            case Due.HEARTBEAT:
                self._beat()
            case Due.LINGER:
                self.close()
            case Due.CLOSE:
                self._transport.abort()

    def _beat(self) -> None:
        """Send a heartbeat, unless the client has been silent, or deaf, for too long.

        A client without heartbeats may be both, but not silent within a command.
        """
        has_heartbeats = self.deadlines.has_heartbeats
        vitality = self.deadlines.examine(
            is_client_heard=self.gate.is_client_heard
            and not self.replies.waiting
            and (has_heartbeats or self.parser.is_mid_command),
            stalled_at=self.replies.stalled_at if has_heartbeats else None,
        )
        match vitality:
            case Vitality.ALIVE:
                if has_heartbeats:
                    self.stream.write(frames.HEARTBEAT)
                self.deadlines.await_heartbeat()
            case Vitality.DEAF:
                logger.warning("client(%s) - does not read, closing", self.remote_address)
                self._abort(Failure.UNREAD)
            case Vitality.SILENT:
                logger.warning("client(%s) - silent, closing", self.remote_address)
                error = self.parser.error_at_eof
                if error is None:
                    self.server.counts.failures[Failure.SILENT] += 1
                    self.close()
                else:
                    self._fail(error)

    # --- the end

    def _give_up(self, error: Exception) -> None:
        """End the connection because of an error.

        Raises:
            AssertionError: the error is one, which is nsqd's own fault and not the client's.
        """
        match error:
            case FatalClientError():
                self._fail(error)
            case TlsRefusedError():
                self.stream.drop_tls()  # there is no TLS to answer in
                fatal = FatalClientError(ErrorCode.E_IDENTIFY_FAILED, f"IDENTIFY failed {error}")
                fatal.__cause__ = error
                self._fail(fatal)
            case TlsEndedError():
                self.eof_received()
            case LineTooLongError() | CompressionError() | SSLError():
                logger.warning("client(%s) - %s, closing", self.remote_address, error)
                self.server.counts.failures[Failure.PROTOCOL] += 1
                self._end(Phase.FAILED)  # without an error frame, as nsqd does
                self._go_on_when_replied()
            case AssertionError():
                raise error
            case _:
                address = self.remote_address
                logger.error("client(%s) - internal error, closing", address, exc_info=error)
                if self._phase is _OPEN:
                    self.server.counts.failures[Failure.INTERNAL] += 1
                    self.close()  # the publishes before it are answered
                else:
                    self._abort(Failure.INTERNAL)

    def _fail(self, error: FatalClientError) -> None:
        """Send the error behind the other replies, then give the client time to read it."""
        logger.warning("client(%s) - %s", self.remote_address, error)
        count_fatal_error(self.server.counts, error)
        self.replies.add(encode_frame(FrameType.ERROR, error.frame_data))
        self.replies.flush()
        self._end(Phase.FAILED)
        self._go_on_when_replied()

    def _go_on_when_replied(self) -> None:
        """Run the IDENTIFY or end the connection, whichever waits until all replies are sent."""
        if self.replies.has_unsent:
            return
        match self._phase:
            case Phase.OPEN if PauseReason.ORDER in self.gate.reasons:
                self.proceed(PauseReason.ORDER, partial(handlers.run, self))
            case Phase.LAST_REPLIES:
                self.close()
            case Phase.FAILED:
                self._phase = Phase.LINGERING
                if self._transport.can_write_eof() and not self._transport.is_closing():
                    self._transport.write_eof()
                self.deadlines.set(Due.LINGER, LINGER_S)
            case _:
                pass

    def close(self, *, is_told: bool = False) -> None:
        """Close once all replies and the written bytes are sent.

        Args:
            is_told: say CLOSE_WAIT first; else there is no further word.
        """
        if is_told:
            self.replies.add(frames.CLOSE_WAIT)
            self.replies.flush()
        if self.replies.has_unsent:
            self._end(Phase.LAST_REPLIES)
            return
        self._end(Phase.CLOSED)
        self._transport.close()
        # A client that does not read can't keep the connection: nsqd has a write deadline.
        self.deadlines.set(Due.CLOSE, LINGER_S)

    def _abort(self, failure: Failure) -> None:
        self.server.counts.failures[failure] += 1
        self._end(Phase.CLOSED)
        self.stream.outgoing.close()
        self._transport.abort()

    def _end(self, phase: Phase) -> None:
        """Run no more commands and deliver no more messages."""
        self._phase = phase
        self.gate.close()
        if self.consumer is not None:
            self.consumer.is_writable = False


def _find_peer(transport: asyncio.Transport) -> tuple[str, str]:
    """Return the client's IP, if it has one, and its address for logs."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "", peer or "@"  # so nsqd shows clients of unix sockets
    return peer[0], format_address(peer)
