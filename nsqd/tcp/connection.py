"""The V2 protocol over TCP and unix sockets: commands in, frames out.

`V2Connection` is one client: a publisher, a consumer, or both. It owns the client's state and its
deadlines, runs its commands, and is the `Sink` of its consumer. What it writes leaves at the end of
the loop turn, so output buffering is never a delay: the buffer sizes and timeouts that clients
negotiate are upper bounds that are kept without a timer of ours.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from ssl import SSLError
from typing import Any, ClassVar, cast

from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.broker.errors import ClosedError, ConsumerLimitError, DepthLimitError, NotInFlightError
from nsqd.broker.queue.receipt import Receipt
from nsqd.protocol import commands, frames
from nsqd.protocol.client_state import ClientState, check_state
from nsqd.protocol.command_parser import MAGIC, CommandParser, LineTooLongError
from nsqd.protocol.compression import CompressionError, DeflateCodec, SnappyCodec
from nsqd.protocol.errors import (
    ClientError,
    ErrorCode,
    FatalClientError,
    message_error,
    publish_error,
)
from nsqd.protocol.frames import FrameType, encode_frame, encode_messages
from nsqd.protocol.identify import ClientSettings, negotiate
from nsqd.runtime.listen import format_address, tune
from nsqd.tcp.auth import AuthState
from nsqd.tcp.client_auth import ClientAuth
from nsqd.tcp.full_queues import publish_in_parts
from nsqd.tcp.replies import HeldReplies
from nsqd.tcp.settings import TcpSettings
from nsqd.tcp.stream import ClientStream, TlsEndedError, TlsRefusedError

logger = logging.getLogger(__name__)

TLS_HANDSHAKE_S = 5.0
# After a fatal error the client's input is read and dropped this long, so that closing with input
# unread does not reset the connection and destroy the error frame on its way.
LINGER_S = 1.0
# Beyond this, what waits to be sent makes a consumer not ready.
WRITE_BUFFER_HIGH_BYTES = 256 * 1024
# A deadline that is this near has come: the second heartbeat and the deadline are one moment.
DEADLINE_SLACK_S = 0.05


class V2Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, broker: Broker, server: TcpSettings) -> None:
        self.state = ClientState.INIT
        self.settings = ClientSettings.initial(server.identify, "")
        self.consumer: Consumer | None = None
        self.channel: Channel | None = None
        self.auth = ClientAuth(server.auth_servers)
        self.pub_counts: dict[str, int] = {}
        self.connected_at_s = int(time.time())
        self.remote_address = ""
        self.remote_ip = ""
        self.stream: ClientStream
        self._broker = broker
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = CommandParser(server.commands, self)
        self._magic: bytes | None = b""  # what has come of it, None when it is complete
        self._is_identified = False
        self._out: list[bytes] = []  # replies of the commands being run
        self._held = HeldReplies(self._send_held)  # those that wait for the disk come before _out
        self._when_answered: Callable[[], object] | None = None  # what waits for the held ones
        self._is_open = False  # False from the moment we decide to close
        self._is_suspended = False  # commands wait for the auth server
        # Nobody wants to see each command before it is run.
        self._has_short_cut = server.auth_servers is None and not logger.isEnabledFor(logging.DEBUG)
        self._heard_at = 0.0
        self._stalled_at: float | None = None  # since when the client does not take our output
        self._timer: asyncio.TimerHandle | None = None

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the magic."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self.stream = ClientStream(self._transport, self._take)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        self._set_remote(self._transport)
        self._is_open = True
        self._heard_at = self._loop.time()
        connections = self._server.connections
        connections.add(self)
        if 0 < self._server.max_connections < len(connections):
            logger.warning("TCP: too many connections, refusing %s", self.remote_address)
            self._abort()
            return
        self._set_timer(self._server.handshake_timeout_s, self._abort)
        logger.info("TCP: new client(%s)", self.remote_address)

    def _set_remote(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.remote_ip = peer[0]
            self.remote_address = format_address(peer)
            tune(transport.get_extra_info("socket"))
        else:
            self.remote_address = peer or "@"  # so nsqd shows clients of unix sockets
        self.settings = ClientSettings.initial(self._server.identify, self.remote_ip)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if not self._is_open:
            return
        try:
            if self.stream.is_plain:
                self._take(data)
            else:
                self.stream.feed(data)
        except Exception as error:  # noqa: BLE001 - the boundary, see there
            self._give_up(error)
        if not self.stream.is_plain and self.stream.has_pending and self._is_open:
            # Others have their turn first, and nothing more is read meanwhile.
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _give_up(self, error: Exception) -> None:
        """End the connection after what its bytes have led to; one client's bad luck is its own."""
        match error:
            case FatalClientError():
                self._fail(error)
            case TlsRefusedError():
                self._refuse_tls(str(error))
            case TlsEndedError():
                if not self.eof_received() and self._is_open:
                    self.close()
            case LineTooLongError() | CompressionError() | SSLError():
                logger.warning("client(%s) - %r", self.remote_address, error)
                self.close()
            case AssertionError():
                raise error
            case _:
                address = self.remote_address
                logger.error("client(%s) - internal error, closing", address, exc_info=error)
                self._abort()

    def _read_on(self) -> None:
        """Go on with what has been read already, then with the socket."""
        if self.stream.has_pending and self._is_listening:
            self.data_received(b"")
        if not self.stream.has_pending and self._is_listening:
            self._transport.resume_reading()

    @property
    def _is_listening(self) -> bool:
        """Whether commands can be run: none waits for the auth server or for unread replies."""
        is_waiting = self._is_suspended or self._stalled_at is not None or self._held.is_full
        return self._is_open and not is_waiting

    def eof_received(self) -> bool:
        """Tell a client that stops in the middle of a body; False lets the transport close."""
        error = self._parser.error_at_eof
        if self._is_open and error is not None:
            self._fail(error)
        elif self._held:
            self._when_answered = self.close
        return bool(self._held)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the channel and let go of everything."""
        logger.info("client(%s) - exiting", self.remote_address)
        self._end()
        self._stop_timer()
        self._server.connections.discard(self)
        # No cycle may stay behind: the garbage collector is not there to find it.
        self._parser.close()
        self.stream.close()
        self._held.close()
        self._when_answered = None
        if self.channel is not None and self.consumer is not None:
            self.channel.unsubscribe(self.consumer)

    def pause_writing(self) -> None:
        """The client does not take what it gets: give it no more."""
        self._stalled_at = self._loop.time()
        if self.consumer is not None:
            self.consumer.is_writable = False

    def resume_writing(self) -> None:
        """The client is taking again."""
        self._stalled_at = None
        self._heard_at = self._loop.time()
        self._read_on()
        if self.consumer is not None and self.channel is not None and self._is_open:
            self.consumer.is_writable = True
            self.channel.wake(self.consumer)

    @property
    def unsent_bytes(self) -> int:
        """How much waits for the client to take it."""
        return self._transport.get_write_buffer_size()

    def deliver(self, heads: list[bytes], ids: list[bytes], bodies: Sequence[bytes]) -> None:
        """Send messages."""
        self.stream.write_messages(encode_messages(heads, ids, bodies), bodies)

    def close(self) -> None:
        """Close without a word, once what has been written is sent."""
        self._end()
        self._transport.close()
        # A client that does not read can't keep the connection: nsqd has a write deadline.
        self._set_timer(LINGER_S, self._transport.abort)

    def _fail(self, error: FatalClientError) -> None:
        """Send the error, say that nothing more comes, and give the client time to read it."""
        logger.warning("client(%s) - %s", self.remote_address, error)
        self._out.append(encode_frame(FrameType.ERROR, error.frame_data))
        self._flush()
        self._end()
        if self._held:
            self._when_answered = self._linger
        else:
            self._linger()

    def _linger(self) -> None:
        """Send nothing more; what was sent has some time to be read."""
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._set_timer(LINGER_S, self.close)

    def _abort(self) -> None:
        self._end()
        self._transport.abort()

    def _end(self) -> None:
        """From here on nothing is taken from the client, and no message given to it."""
        self._is_open = False
        if self.consumer is not None:
            self.consumer.is_writable = False

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            reply = out[0] if len(out) == 1 else b"".join(out)
            if self._held.replies:
                self._held.add(reply)
                self._wait_for_client()
                return
            self.stream.write(reply)
            if self._stalled_at is not None:
                self._wait_for_client()

    def _wait_for_client(self) -> None:
        """Read no more until it has got, and read, most of what it is owed."""
        if self._is_open and (self._stalled_at is not None or self._held.is_full):
            self._transport.pause_reading()

    def _hold(self, receipt: Receipt, verb: str, reply: bytes) -> None:
        """Answer when what was published is durable."""
        self._flush()
        self._held.add_receipt(receipt, verb, reply)
        self._wait_for_client()

    def _send_held(self) -> None:
        """Send what has waited long enough; others wait for the same sync, so nothing escapes."""
        was_full = self._held.is_full
        ready, failure = self._held.take()
        try:
            if ready:
                self.stream.write(b"".join(ready))
                self._wait_for_client()
            if failure is not None:
                self._fail(publish_error(*failure))
            elif not self._held and self._when_answered is not None:
                proceed, self._when_answered = self._when_answered, None
                proceed()
        except Exception as error:  # noqa: BLE001 - the boundary, see there
            self._give_up(error)
        if was_full and not self._held.is_full:
            self._heard_at = self._loop.time()
            self._read_on()

    # --- deadlines

    def _set_timer(self, delay_s: float, callback: Callable[[], object]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(delay_s, callback)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_heartbeats(self) -> None:
        self._heard_at = self._loop.time()
        interval_ms = self.settings.heartbeat_interval_ms
        if interval_ms:
            self._set_timer(interval_ms / 1000, self._beat)
        else:
            self._stop_timer()

    def _beat(self) -> None:
        """Send a heartbeat, unless the client has been silent, or deaf, for too long."""
        interval_s = self.settings.heartbeat_interval_ms / 1000
        now = self._loop.time()
        if self._stalled_at is not None and now - self._stalled_at >= interval_s:
            logger.warning("client(%s) - does not read, closing", self.remote_address)
            self._abort()
        elif self._is_silent(now, 2 * interval_s):
            logger.warning("client(%s) - silent, closing", self.remote_address)
            error = self._parser.error_at_eof
            if error is None:
                self.close()
            else:
                self._fail(error)
        else:
            self.stream.write(frames.HEARTBEAT)
            self._set_timer(interval_s, self._beat)

    def _is_silent(self, now: float, limit_s: float) -> bool:
        """Whether the client has said nothing for too long, though it was listened to."""
        is_heard = not self._is_suspended and not self._held.is_full
        return is_heard and now - self._heard_at >= limit_s - DEADLINE_SLACK_S

    # --- commands

    def _take(self, data: bytes) -> None:
        """Take what the client sent and run it."""
        if self._magic is not None:
            self._magic += data
            if len(self._magic) < len(MAGIC):
                return
            if not self._magic.startswith(MAGIC):
                raise FatalClientError(ErrorCode.E_BAD_PROTOCOL)
            data = self._magic[len(MAGIC) :]
            self._magic = None
            self._start_heartbeats()
        if not self._is_open:
            return
        if self._has_short_cut and (publish := self._parser.find_lone_publish(data)) is not None:
            self._publish(publish)
            self._flush()
        else:
            self._parser.feed(data)
            if not self._is_suspended:
                self._run(self._parser.commands())
        if not self._parser.is_dragging:  # as in nsqd, a command has the time of two heartbeats
            self._heard_at = self._loop.time()
        if self._server.on_read is not None:
            self._server.on_read()

    def admit(self, verb: bytes) -> bool:
        """Check that a command is allowed now; False if it is to be ignored."""
        if self._server.is_tls_required and self.stream.tls is None and verb != b"IDENTIFY":
            text = b"cannot " + verb + b" in current state (TLS required)"
            raise FatalClientError(ErrorCode.E_INVALID, text)
        check_state(verb, self.state)
        if verb == b"SUB" and not self.settings.heartbeat_interval_ms:
            raise FatalClientError(ErrorCode.E_INVALID, "cannot SUB with heartbeats disabled")
        return not (verb == b"RDY" and self.state is ClientState.CLOSING)

    def _run(self, parsed: Iterator[commands.Command], *, has_fresh_rights: bool = False) -> None:
        """Run commands and send their replies in one write.

        Args:
            has_fresh_rights: the auth server has just answered; however short a time its answer is
                good for, it is good for these commands.
        """
        if logger.isEnabledFor(logging.DEBUG):
            parsed = self._log_commands(parsed)
        can_expire = self.auth.state is not None and not has_fresh_rights
        try:
            for command in parsed:
                kind = type(command)
                if can_expire and kind in _NEED_AUTH and self.auth.is_expired:
                    self._ask_auth_server(
                        partial(self._run, iter([command]), has_fresh_rights=True)
                    )
                    return
                try:
                    self._handlers[kind](self, command)
                except FatalClientError:
                    raise
                except ClientError as error:
                    self._out.append(encode_frame(FrameType.ERROR, error.frame_data))
                if self._is_suspended or not self._is_open:
                    return
        finally:
            self._flush()

    def _log_commands(self, parsed: Iterator[commands.Command]) -> Iterator[commands.Command]:
        for command in parsed:
            logger.debug("PROTOCOL(V2): [%s] %s", self.remote_address, commands.describe(command))
            yield command

    def _publish(self, command: commands.Publish, delay_s: float = 0.0) -> None:
        name = command.topic
        if self.auth.is_required:
            self.auth.check(command.verb, name)
        try:
            topic = self._broker.topics.get(name) or self._broker.ensure_topic(name)
            receipt = topic.publish(command.bodies, delay_s=delay_s)
        except DepthLimitError as error:
            publish_in_parts(self._publish, self._broker, command, error)
            return
        except (ClosedError, OSError) as error:
            raise publish_error(command.verb, error) from error
        self.pub_counts[name] = self.pub_counts.get(name, 0) + len(command.bodies)
        ok = frames.OK if command.ok_count == 1 else frames.OK * command.ok_count
        if receipt is None:
            self._out.append(ok)
        else:
            self._hold(receipt, command.verb, ok)

    def _publish_deferred(self, command: commands.DeferredPublish) -> None:
        publish = commands.Publish("DPUB", command.topic, [command.body], 1)
        self._publish(publish, command.delay_ms / 1000)

    def _subscribe(self, command: commands.Subscribe) -> None:
        self.auth.check("SUB", command.topic, command.channel)
        consumer = Consumer(
            self,
            msg_timeout_s=self.settings.msg_timeout_ms / 1000,
            sample_rate=self.settings.sample_rate,
            locality=self._server.find_locality(self.settings, is_identified=self._is_identified),
        )
        try:
            channel = self._broker.ensure_topic(command.topic).ensure_channel(command.channel)
            channel.subscribe(consumer)
        except (ClosedError, ConsumerLimitError, OSError) as error:
            raise publish_error("SUB", error) from error
        consumer.is_writable = self._stalled_at is None
        self.consumer = consumer
        self.channel = channel
        self.state = ClientState.SUBSCRIBED
        self._out.append(frames.OK)

    def _ready(self, command: commands.Ready) -> None:
        channel, consumer = self._subscription()
        channel.set_ready(consumer, command.count)

    def _finish(self, command: commands.Finish) -> None:
        channel, consumer = self._subscription()
        for message_id, reason in channel.finish(consumer, command.ids):
            error = message_error("FIN", ErrorCode.E_FIN_FAILED, message_id, reason)
            self._out.append(encode_frame(FrameType.ERROR, error.frame_data))

    def _requeue(self, command: commands.Requeue) -> None:
        channel, consumer = self._subscription()
        delay_ms = min(command.delay_ms, self._server.max_req_ms)
        if delay_ms < command.delay_ms:
            logger.info(
                "client(%s) - REQ timeout %d out of range 0-%d, setting to %d",
                *(self.remote_address, command.delay_ms, self._server.max_req_ms, delay_ms),
            )
        try:
            channel.requeue(consumer, command.message_id, delay_ms / 1000)
        except NotInFlightError as error:
            code = ErrorCode.E_REQ_FAILED
            raise message_error("REQ", code, command.message_id, str(error)) from error

    def _touch(self, command: commands.Touch) -> None:
        channel, consumer = self._subscription()
        try:
            channel.touch(consumer, command.message_id)
        except NotInFlightError as error:
            code = ErrorCode.E_TOUCH_FAILED
            raise message_error("TOUCH", code, command.message_id, str(error)) from error

    def _start_close(self, _command: commands.StartClose) -> None:
        _, consumer = self._subscription()
        consumer.ready_count = 0
        self.state = ClientState.CLOSING
        self._out.append(frames.CLOSE_WAIT)

    def _nop(self, _command: commands.Nop) -> None:
        """Having been heard is all that a NOP is for."""

    def _subscription(self) -> tuple[Channel, Consumer]:
        assert self.channel is not None  # admit() has seen to it
        assert self.consumer is not None
        return self.channel, self.consumer

    # --- negotiation

    def _identify(self, command: commands.Identify) -> None:
        if self._held:  # its reply may be the last one in the clear
            self._suspend()
            self._when_answered = lambda: self._proceed(lambda: self._run(iter([command])))
            return
        before = self.settings
        self.settings, reply = negotiate(command.body, before, self._server.identify)
        self._is_identified = True
        self._out.append(encode_frame(FrameType.RESPONSE, reply))
        self._flush()
        self._start_heartbeats()
        if self.settings.tls_v1 and not before.tls_v1:
            assert self._server.ssl_context is not None
            self._set_timer(TLS_HANDSHAKE_S, partial(self._refuse_tls, "timeout"))
            ahead = self._parser.take_rest()
            self.stream.start_tls(self._server.ssl_context, self._tls_started, ahead)
        elif self._wants_compression():
            ahead = self._parser.take_rest()
            self._start_compression()
            if ahead:
                self.stream.feed(ahead)

    def _tls_started(self) -> None:
        self._start_heartbeats()
        if self._wants_compression():
            self._start_compression()

    def _refuse_tls(self, cause: str) -> None:
        """Answer in the clear: there is no TLS to answer in."""
        self.stream.drop_tls()
        self._fail(FatalClientError(ErrorCode.E_IDENTIFY_FAILED, f"IDENTIFY failed {cause}"))

    def _wants_compression(self) -> bool:
        return (self.settings.snappy or self.settings.deflate) and not self.stream.is_compressed

    def _start_compression(self) -> None:
        codec = SnappyCodec() if self.settings.snappy else DeflateCodec(self.settings.deflate_level)
        self.stream.start_compression(codec)
        self.stream.write(frames.OK)

    # --- authorization

    def authorize(self, verb: str, topic: str, channel: str = "") -> None:
        """Check what the client may do, before the body of its command is there."""
        self.auth.check(verb, topic, channel)

    def _authenticate(self, command: commands.Auth) -> None:
        self.auth.begin(command.secret)
        self._ask_auth_server(
            lambda: self._out.append(encode_frame(FrameType.RESPONSE, self.auth.reply()))
        )

    def _ask_auth_server(self, then: Callable[[], object]) -> None:
        """Ask; the client's further commands wait, other clients don't."""
        self._suspend()
        answer = self.auth.ask(self.remote_ip, self.stream.tls)
        answer.add_done_callback(lambda done: self._auth_answered(done, then))

    def _suspend(self) -> None:
        """Run no more commands until `_proceed`."""
        self._is_suspended = True
        self._transport.pause_reading()

    def _auth_answered(self, answer: asyncio.Future[AuthState], then: Callable[[], object]) -> None:
        if answer.cancelled():
            return  # nsqd is stopping
        answer.exception()  # asyncio complains if nobody looks, as when the client has left

        def use_it() -> None:
            self.auth.use_answer(answer, self.remote_address)
            then()

        self._proceed(use_it)

    def _proceed(self, then: Callable[[], object]) -> None:
        """Go on with what was waited for, then with the commands that came meanwhile."""
        if not self._is_open:
            return
        self._is_suspended = False
        self._heard_at = self._loop.time()
        try:
            then()
            self._flush()
            if not self._is_suspended:
                self._run(self._parser.commands())
        except Exception as failure:  # noqa: BLE001 - the boundary, see there
            self._give_up(failure)
        self._read_on()

    _handlers: ClassVar[dict[type, Callable[["V2Connection", Any], None]]] = {
        commands.Publish: _publish,
        commands.Finish: _finish,
        commands.Ready: _ready,
        commands.Requeue: _requeue,
        commands.Touch: _touch,
        commands.Nop: _nop,
        commands.DeferredPublish: _publish_deferred,
        commands.Subscribe: _subscribe,
        commands.StartClose: _start_close,
        commands.Identify: _identify,
        commands.Auth: _authenticate,
    }


_NEED_AUTH = frozenset({commands.Publish, commands.DeferredPublish, commands.Subscribe})
