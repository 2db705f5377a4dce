"""Handlers: one function for each kind of command, in `HANDLERS`.

A handler gets the connection and the command, changes the broker through its methods, and adds
its reply to `client.replies`. It raises `FatalClientError` to end the connection with an error
frame. The parser has checked the command and its admission.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer, Locality
from nsqd.broker.errors import (
    ClosedError,
    ConsumerLimitError,
    DepthLimitError,
    NotInFlightError,
    cause_of,
)
from nsqd.broker.queue.receipt import Receipt
from nsqd.protocol import commands, frames
from nsqd.protocol.commands import ClientState
from nsqd.protocol.compression import DeflateCodec, SnappyCodec
from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.protocol.frames import FrameType, encode_frame
from nsqd.protocol.identify import negotiate
from nsqd.tcp.auth import AuthState
from nsqd.tcp.read_gate import PauseReason, ReadGate
from nsqd.tcp.stream import ClientStream

if TYPE_CHECKING:
    from nsqd.tcp.connection import V2Connection

logger = logging.getLogger(__name__)

# A client with this many replies that wait for the disk is not read from until some are sent.
MAX_WAITING_REPLIES = 1024
MAX_WAITING_BYTES = 1024 * 1024

_NOTHING = commands.Nop()

_FAILED_CODES = {
    "PUB": ErrorCode.E_PUB_FAILED,
    "MPUB": ErrorCode.E_MPUB_FAILED,
    "DPUB": ErrorCode.E_DPUB_FAILED,
    "SUB": ErrorCode.E_SUB_FAILED,
}

_ERROR: Final = FrameType.ERROR
_FIN_FAILED: Final = f"{ErrorCode.E_FIN_FAILED} FIN ".encode()
_REQ_FAILED: Final = f"{ErrorCode.E_REQ_FAILED} REQ ".encode()
_TOUCH_FAILED: Final = f"{ErrorCode.E_TOUCH_FAILED} TOUCH ".encode()


def failed_error(verb: str, error: Exception) -> FatalClientError:
    """Return the error for a client whose publish or subscription the broker refused."""
    fatal = FatalClientError(_FAILED_CODES[verb], f"{verb} failed {cause_of(error)}")
    fatal.__cause__ = error  # which tells why, to be counted
    return fatal


# --- publishing


def publish(client: "V2Connection", command: commands.Publish) -> None:
    """Publish a run of PUBs.

    Each PUB stands for itself: when a bounded queue has room for some of them, those are published
    and the next is refused.

    Raises:
        FatalClientError: one is refused.
    """
    topic = command.topic
    bodies = command.bodies
    count = len(bodies)
    try:
        _publish(client, "PUB", topic, bodies, frames.OK if count == 1 else frames.OK * count)
    except DepthLimitError as error:
        if count == 1:
            raise _no_room(client, "PUB", topic, error) from error
        part_count = error.room_count or 1
        for start in range(0, count, part_count):
            publish(client, commands.Publish(topic, bodies[start : start + part_count]))


def publish_alone(client: "V2Connection", name: str, body: bytes) -> None:
    """Publish a PUB that came alone and needs no rights, and send its reply.

    As `publish` does it, on a shorter way: a publisher that waits for each OK pays for each call
    (bench: pub-sync).

    Raises:
        FatalClientError: it is refused.
    """
    broker = client.broker
    try:
        topic = broker.topics.get(name) or broker.ensure_topic(name)
        receipt = topic.publish((body,))
    except DepthLimitError as error:
        raise _no_room(client, "PUB", name, error) from error
    except (ClosedError, OSError) as error:
        raise failed_error("PUB", error) from error
    client.pub_counts[name] = client.pub_counts.get(name, 0) + 1
    if receipt is None:
        client.replies.send(frames.OK)
    else:
        _reply_when_durable(client, receipt, "PUB", frames.OK)
        client.replies.flush()


def publish_many(client: "V2Connection", command: commands.MultiPublish) -> None:
    """Publish the messages of an MPUB, all or none.

    Raises:
        FatalClientError: they are refused.
    """
    try:
        _publish(client, "MPUB", command.topic, command.bodies, frames.OK)
    except DepthLimitError as error:
        raise _no_room(client, "MPUB", command.topic, error) from error


def check_rights(client: "V2Connection", command: commands.MultiPublishBegun) -> None:
    """Check the rights for an MPUB before its body is read.

    Raises:
        FatalClientError: the client may not publish to the topic.
    """
    client.auth.check("MPUB", command.topic)


def publish_deferred(client: "V2Connection", command: commands.DeferredPublish) -> None:
    """Publish a run of DPUBs; each stands for itself, as in a run of PUBs.

    Raises:
        FatalClientError: one is refused.
    """
    topic, delay_ms, bodies = command.topic, command.delay_ms, command.bodies
    count = len(bodies)
    try:
        _publish(client, "DPUB", topic, bodies, frames.OK * count, delay_ms / 1000)
    except DepthLimitError as error:
        if count == 1:
            raise _no_room(client, "DPUB", topic, error) from error
        part_count = error.room_count or 1
        for start in range(0, count, part_count):
            part = bodies[start : start + part_count]
            publish_deferred(client, commands.DeferredPublish(topic, delay_ms, part))


def _publish(
    client: "V2Connection",
    verb: str,
    name: str,
    bodies: list[bytes],
    reply: bytes,
    delay_s: float = 0.0,
) -> None:
    """Publish messages and reply, at once or when they are written or durable.

    A large publish, or one to a disk that does not keep up, holds the commands behind it until
    its reply is sent.

    Raises:
        DepthLimitError: a bounded queue has no room for all of them.
        FatalClientError: they are refused for another reason.
    """
    if client.auth.is_required:
        client.auth.check(verb, name)
    broker = client.broker
    try:
        topic = broker.topics.get(name) or broker.ensure_topic(name)
        receipt = topic.publish(bodies, delay_s=delay_s)
    except (ClosedError, OSError) as error:
        raise failed_error(verb, error) from error
    client.pub_counts[name] = client.pub_counts.get(name, 0) + len(bodies)
    if receipt is None:
        client.replies.add(reply)
    else:
        _reply_when_durable(client, receipt, verb, reply)


def _reply_when_durable(client: "V2Connection", receipt: Receipt, verb: str, reply: bytes) -> None:
    client.replies.add_durable(receipt, verb, reply)
    if receipt.holds_publisher:
        client.park(_NOTHING, PauseReason.ORDER)


def _no_room(
    client: "V2Connection", verb: str, topic: str, error: DepthLimitError
) -> FatalClientError:
    client.broker.count_refusal(topic)
    return failed_error(verb, error)


# --- consuming


def subscribe(client: "V2Connection", command: commands.Subscribe) -> None:
    """Make the client a consumer of a channel.

    Raises:
        FatalClientError: the client may not, or the channel does not take it.
    """
    client.auth.check("SUB", command.topic, command.channel)
    consumer = Consumer(
        client,
        msg_timeout_s=client.settings.msg_timeout_ms / 1000,
        sample_rate=client.settings.sample_rate,
        locality=_find_locality(client),
        counted_locality=_find_counted_locality(client),
    )
    try:
        channel = client.broker.ensure_topic(command.topic).ensure_channel(command.channel)
        channel.subscribe(consumer)
    except (ClosedError, ConsumerLimitError, OSError) as error:
        raise failed_error("SUB", error) from error
    consumer.is_writable = client.replies.stalled_at is None
    client.consumer = consumer
    client.channel = channel
    _enter_state(client, ClientState.SUBSCRIBED)
    client.replies.add(frames.OK)


def _find_counted_locality(client: "V2Connection") -> Locality:
    """Return how near the consumer is to the statistics: to them empty equals empty."""
    ours = client.server.identify
    theirs = client.settings
    if not client.server.is_topology_aware or not theirs.is_identified:
        return Locality.GLOBAL
    if theirs.topology_zone == ours.topology_zone:
        return Locality.ZONE
    return Locality.REGION if theirs.topology_region == ours.topology_region else Locality.GLOBAL


def _find_locality(client: "V2Connection") -> Locality:
    """Return which consumers it comes before: an nsqd without region and zone prefers none."""
    if not client.server.is_topology_aware:
        return Locality.GLOBAL
    ours = client.server.identify
    theirs = client.settings
    if ours.topology_zone and theirs.topology_zone == ours.topology_zone:
        return Locality.ZONE
    if ours.topology_region and theirs.topology_region == ours.topology_region:
        return Locality.REGION
    return Locality.GLOBAL


def set_ready(client: "V2Connection", command: commands.Ready) -> None:
    """Set how many messages the consumer wants in flight."""
    channel, consumer = _subscription(client)
    channel.set_ready(consumer, command.count)


def finish(client: "V2Connection", command: commands.Finish) -> None:
    """Finish messages; each that is not in flight is answered with an error."""
    channel, consumer = client.channel, client.consumer
    assert channel is not None, "admitted without a subscription"
    assert consumer is not None
    for message_id, reason in channel.finish(consumer, command.ids):
        client.replies.add(_refusal(_FIN_FAILED, message_id, reason))


def requeue(client: "V2Connection", command: commands.Requeue) -> None:
    """Requeue messages, with a delay that is at most --max-req-timeout.

    Each that is not in flight is answered with an error.
    """
    channel, consumer = _subscription(client)
    maximum = client.server.max_req_ms
    delay_ms = min(command.delay_ms, maximum)
    if delay_ms < command.delay_ms:
        logger.info(
            "client(%s) - REQ timeout %d out of range 0-%d, setting to %d",
            *(client.remote_address, command.delay_ms, maximum, delay_ms),
        )
    for message_id, reason in channel.requeue(consumer, command.ids, delay_ms / 1000):
        client.replies.add(_refusal(_REQ_FAILED, message_id, reason))


def touch(client: "V2Connection", command: commands.Touch) -> None:
    """Give the consumer more time for a message."""
    channel, consumer = _subscription(client)
    try:
        channel.touch(consumer, command.message_id)
    except NotInFlightError as error:
        client.replies.add(_refusal(_TOUCH_FAILED, command.message_id, str(error)))


def start_close(client: "V2Connection", _command: commands.StartClose) -> None:
    """Deliver no more messages; those in flight can still be finished."""
    _, consumer = _subscription(client)
    consumer.ready_count = 0
    _enter_state(client, ClientState.CLOSING)
    client.replies.add(frames.CLOSE_WAIT)


def ignore(_client: "V2Connection", _command: commands.Nop | commands.Progress) -> None:
    """Run a NOP: to be heard from is all that it is for."""


def _subscription(client: "V2Connection") -> tuple[Channel, Consumer]:
    assert client.channel is not None, "admitted without a subscription"
    assert client.consumer is not None
    return client.channel, client.consumer


def _enter_state(client: "V2Connection", state: ClientState) -> None:
    client.parser.admission = replace(client.parser.admission, state=state)


def _refusal(what: bytes, message_id: bytes, reason: str) -> bytes:
    """Return the error frame for a message that is not in flight at the consumer.

    Without an exception, which takes three times as long: a client may name thousands.
    """
    return encode_frame(_ERROR, what + message_id + b" failed " + reason.encode())


# --- negotiation


def identify(client: "V2Connection", command: commands.Identify) -> None:
    """Agree on the connection's settings, and begin TLS or compression.

    Raises:
        FatalClientError: the client asks for settings that the limits forbid.
        TlsRefusedError: the client has sent ahead, and that is no TLS.
    """
    if client.replies.waiting:  # this reply may be the last one in the clear
        client.park(command, PauseReason.ORDER)
        return
    before = client.settings
    client.settings, reply = negotiate(command.body, before, client.server.identify)
    interval_ms = client.settings.heartbeat_interval_ms
    client.parser.admission = replace(client.parser.admission, has_heartbeats=bool(interval_ms))
    client.replies.add(encode_frame(FrameType.RESPONSE, reply))
    client.deadlines.start_heartbeats(interval_ms)
    if client.settings.tls_v1 and not before.tls_v1:
        client.replies.flush()
        _start_tls(client)
    elif _wants_compression(client):
        client.replies.flush()
        ahead = client.parser.release_rest()
        _start_compression(client)
        if ahead:
            client.stream.feed(ahead)


def _start_tls(client: "V2Connection") -> None:
    context = client.server.ssl_context
    assert context is not None, "TLS was granted without a certificate"
    client.parser.admission = replace(client.parser.admission, is_tls_missing=False)
    client.deadlines.await_tls()
    ahead = client.parser.release_rest()
    client.stream.start_tls(context, partial(_tls_started, client), ahead)


def _tls_started(client: "V2Connection") -> None:
    client.deadlines.start_heartbeats(client.settings.heartbeat_interval_ms)
    if _wants_compression(client):
        _start_compression(client)


def _wants_compression(client: "V2Connection") -> bool:
    settings = client.settings
    return (settings.snappy or settings.deflate) and not client.stream.is_compressed


def _start_compression(client: "V2Connection") -> None:
    settings = client.settings
    codec = SnappyCodec() if settings.snappy else DeflateCodec(settings.deflate_level)
    client.stream.start_compression(codec)
    client.stream.write(frames.OK)


# --- rights


def authenticate(client: "V2Connection", command: commands.Auth) -> None:
    """Ask the auth servers for the rights of a secret.

    Raises:
        FatalClientError: no auth server is configured, or the client has rights already.
    """
    client.auth.begin(command.secret)
    ask_auth_server(client, command)


def must_renew_rights(client: "V2Connection", command: commands.Command) -> bool:
    """Say whether a command needs rights, and those of the client have expired."""
    return type(command) in _NEED_RIGHTS and client.auth.is_expired


def ask_auth_server(client: "V2Connection", command: commands.Command) -> None:
    """Park a command until the auth servers have answered; other clients go on meanwhile."""
    client.park(command, PauseReason.AUTH)
    answer = client.auth.ask(client.remote_ip, client.stream.tls)
    answer.add_done_callback(partial(_auth_answered, client))


def _auth_answered(client: "V2Connection", answer: asyncio.Future[AuthState]) -> None:
    if answer.cancelled():
        return  # nsqd is stopping
    answer.exception()  # fetched even if the client has left: asyncio logs an error that is not
    client.proceed(PauseReason.AUTH, partial(_use_rights, client, answer))


def _use_rights(
    client: "V2Connection", answer: asyncio.Future[AuthState], command: commands.Command
) -> None:
    """Answer an AUTH, or run the command that waited for new rights.

    The rights are good for that command, even if they have expired again by now.
    """
    client.auth.use_answer(answer, client.remote_address)
    if isinstance(command, commands.Auth):
        client.replies.add(encode_frame(FrameType.RESPONSE, client.auth.reply()))
    else:
        run(client, command)


_NEED_RIGHTS = frozenset(
    {
        commands.Publish,
        commands.MultiPublish,
        commands.DeferredPublish,
        commands.Subscribe,
    }
)

HANDLERS: dict[type, Callable[["V2Connection", Any], None]] = {
    commands.Publish: publish,
    commands.MultiPublish: publish_many,
    commands.MultiPublishBegun: check_rights,
    commands.DeferredPublish: publish_deferred,
    commands.Finish: finish,
    commands.Ready: set_ready,
    commands.Requeue: requeue,
    commands.Touch: touch,
    commands.Nop: ignore,
    commands.Progress: ignore,
    commands.Subscribe: subscribe,
    commands.StartClose: start_close,
    commands.Identify: identify,
    commands.Auth: authenticate,
}


def run(client: "V2Connection", command: commands.Command) -> None:
    """Run one command.

    Raises:
        FatalClientError: the connection is to be closed with this error.
    """
    HANDLERS[type(command)](client, command)


class Replies:
    """The answers to a client, in the order of its commands.

    Most are sent when the commands of a read have been run. A publish that has to be durable is
    answered when its sync has ended; until then all later replies wait behind it. Messages and
    heartbeats do not wait: they answer no command.

    A client that leaves too many replies unread, or has too many that wait for the disk, is not
    read from.
    """

    __slots__ = (
        "_fresh",
        "_gate",
        "_on_settled",
        "_outgoing",
        "_sent",
        "_waiting_bytes",
        "_write",
        "add",
        "stalled_at",
        "waiting",
    )

    def __init__(
        self, stream: ClientStream, gate: ReadGate, on_settled: Callable[[], object]
    ) -> None:
        """Begin without replies.

        Args:
            stream: sends bytes to the client.
            gate: paused while the client is owed too many replies.
            on_settled: called when a publish is durable, or has failed; calls `send_settled`.
        """
        self._write = stream.write
        self._outgoing = stream.outgoing
        self._gate = gate
        # Since when the client does not read: the transport's buffer is too full. Set by the
        # connection.
        self.stalled_at: float | None = None
        self._on_settled: Callable[[], object] | None = on_settled
        self._fresh: list[bytes] = []  # of the commands that are being run
        # Appends one frame, or several joined, to the fresh replies. The list's own method: every
        # command calls it.
        self.add = self._fresh.append
        # Replies behind the oldest publish that is not durable yet: the receipt and verb if the
        # reply is a publish's, and the frames. Changed here only.
        self.waiting: deque[tuple[Receipt | None, str, bytes]] = deque()
        self._waiting_bytes = 0
        self._sent: asyncio.Future[None] | None = None  # `wait_sent` waits for it

    @property
    def has_unsent(self) -> bool:
        """Whether replies wait for the disk, or replies and messages to be encoded."""
        return bool(self.waiting) or self._outgoing.is_busy

    @property
    def is_full(self) -> bool:
        """Whether no more commands should be run before some replies are sent."""
        is_long = len(self.waiting) >= MAX_WAITING_REPLIES
        return is_long or self._waiting_bytes >= MAX_WAITING_BYTES

    def flush(self) -> None:
        """Send the fresh replies in one write."""
        fresh = self._fresh
        if fresh:
            data = fresh[0] if len(fresh) == 1 else b"".join(fresh)
            fresh.clear()
            if self.waiting:
                self._append(None, "", data)
            else:
                self._write(data)
        elif not self.waiting:
            return
        if self.stalled_at is not None:
            self._gate.pause(PauseReason.UNREAD)
        if self.waiting and self.is_full:
            self._gate.pause(PauseReason.DISK)

    def send(self, reply: bytes) -> None:
        """Send one reply, the only fresh one: as `add` and `flush`."""
        if self.waiting:
            self.add(reply)
            self.flush()
            return
        self._write(reply)
        if self.stalled_at is not None:
            self._gate.pause(PauseReason.UNREAD)

    def add_durable(self, receipt: Receipt, verb: str, reply: bytes) -> None:
        """Append a reply that is sent once its publish is durable."""
        self.flush()
        self._append(receipt, verb, reply)
        receipt.when_done(self._note_settled)

    def send_settled(self) -> FatalClientError | None:
        """Send the waiting replies as far as their publishes are durable, or have failed.

        A failed publish is answered with its error. Those behind it were made before that was
        known: they are answered in their turn.

        Returns:
            The error of the first publish that has failed, None if there is none.
        """
        settled: list[bytes] = []
        failure: FatalClientError | None = None
        waiting = self.waiting
        while waiting:
            receipt, verb, reply = waiting[0]
            if receipt is not None and not receipt.is_done:
                break
            waiting.popleft()
            self._waiting_bytes -= len(reply)
            if receipt is not None and receipt.error is not None:
                error = failed_error(verb, receipt.error)
                failure = failure or error
                reply = encode_frame(_ERROR, error.frame_data)
            settled.append(reply)
        if not waiting:
            self._tell_sent()
        if settled:
            self._write(b"".join(settled))
            if self.stalled_at is not None:
                self._gate.pause(PauseReason.UNREAD)
        return failure

    async def wait_sent(self) -> None:
        """Return when no reply waits for the disk any more, or the connection is gone."""
        if self.waiting:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def _tell_sent(self) -> None:
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def close(self) -> None:
        """Drop all replies: the connection is gone."""
        self._fresh.clear()
        self.waiting.clear()
        self._waiting_bytes = 0
        self._tell_sent()
        self._on_settled = None

    def _append(self, receipt: Receipt | None, verb: str, reply: bytes) -> None:
        self.waiting.append((receipt, verb, reply))
        self._waiting_bytes += len(reply)

    def _note_settled(self, _error: Exception | None) -> None:
        if self._on_settled is not None:
            self._on_settled()
