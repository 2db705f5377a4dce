"""The commands of the V2 protocol as values, and which of them a client may send at the moment.

`command_parser` makes the values of bytes.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from nsqd.protocol.errors import ErrorCode, FatalClientError


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY with its JSON."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH with its secret."""

    secret: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUB."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class Ready:
    """RDY, its count within the limit."""

    count: int


class Publish:
    """PUBs to one topic, one after the other: each body is a PUB, and has an OK of its own.

    No dataclass, as the other runs of commands: these are made for every read, and a frozen
    dataclass costs ten times as much to make.
    """

    __slots__ = ("bodies", "topic")

    def __init__(self, topic: str, bodies: list[bytes]) -> None:
        self.topic = topic
        self.bodies = bodies


class MultiPublish:
    """MPUB: all bodies are published or none, with one OK."""

    __slots__ = ("bodies", "topic")

    def __init__(self, topic: str, bodies: list[bytes]) -> None:
        self.topic = topic
        self.bodies = bodies


@dataclass(frozen=True, slots=True)
class MultiPublishBegun:
    """The line of an MPUB, before its bodies: nsqd checks the client's rights at this point.

    It precedes the `MultiPublish` of every line that is not the same as the last MPUB's.
    """

    topic: str


class DeferredPublish:
    """DPUBs to one topic with one delay, one after the other: each body has an OK of its own."""

    __slots__ = ("bodies", "delay_ms", "topic")

    def __init__(self, topic: str, delay_ms: int, bodies: list[bytes]) -> None:
        self.topic = topic
        self.delay_ms = delay_ms
        self.bodies = bodies


class Finish:
    """FINs, one after the other."""

    __slots__ = ("ids",)

    def __init__(self, ids: list[bytes]) -> None:
        self.ids = ids


class Requeue:
    """REQs with one delay, one after the other; the handler shortens one beyond the limit."""

    __slots__ = ("delay_ms", "ids")

    def __init__(self, ids: list[bytes], delay_ms: int) -> None:
        self.ids = ids
        self.delay_ms = delay_ms


@dataclass(frozen=True, slots=True)
class Touch:
    """TOUCH."""

    message_id: bytes


@dataclass(frozen=True, slots=True)
class StartClose:
    """CLS."""


@dataclass(frozen=True, slots=True)
class Nop:
    """NOP."""


@dataclass(frozen=True, slots=True)
class Progress:
    """No command: a part of a long MPUB was read, or a command was skipped, and there may be more.

    The owner of the parser can look at the clock between two of these.
    """


Command: TypeAlias = (
    Publish
    | MultiPublish
    | MultiPublishBegun
    | Finish
    | Identify
    | Auth
    | Subscribe
    | Ready
    | DeferredPublish
    | Requeue
    | Touch
    | StartClose
    | Nop
    | Progress
)


def describe(command: Command) -> str:
    """Return a command for the log, without bodies and secrets."""
    match command:
        case Publish(topic=topic, bodies=bodies):
            return f"PUB {topic} count={len(bodies)}"
        case MultiPublish(topic=topic, bodies=bodies):
            return f"MPUB {topic} count={len(bodies)}"
        case DeferredPublish(topic=topic, delay_ms=delay_ms, bodies=bodies):
            return f"DPUB {topic} {delay_ms} count={len(bodies)}"
        case Requeue(ids=ids, delay_ms=delay_ms):
            return f"REQ {delay_ms} {b' '.join(ids).decode('ascii', 'replace')}"
        case Finish(ids=ids):
            return f"FIN {b' '.join(ids).decode('ascii', 'replace')}"
        case Identify() | Auth():
            return type(command).__name__
        case _:
            return str(command)


class ClientState(IntEnum):
    """The states that /stats shows; nsqd never gives 1 and 2 to clients."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


_CONSUMING = (ClientState.SUBSCRIBED, ClientState.CLOSING)
_ALLOWED_STATES: dict[bytes, tuple[ClientState, ...]] = {
    b"IDENTIFY": (ClientState.INIT,),
    b"AUTH": (ClientState.INIT,),
    b"SUB": (ClientState.INIT,),
    b"RDY": _CONSUMING,
    b"FIN": _CONSUMING,
    b"REQ": _CONSUMING,
    b"TOUCH": _CONSUMING,
    b"CLS": (ClientState.SUBSCRIBED,),
}


@dataclass(frozen=True, slots=True)
class Admission:
    """The facts that admit or refuse a command by its verb alone."""

    state: ClientState = ClientState.INIT
    is_tls_missing: bool = False  # TLS is required, and the client has not begun it
    has_heartbeats: bool = True

    def admits(self, verb: bytes) -> bool:
        """Say whether a command counts; False: it is skipped, parameters unread.

        Publishing and NOP are allowed in every state.

        Raises:
            FatalClientError: the client may not send the command now.
        """
        if self.is_tls_missing and verb != b"IDENTIFY":
            text = b"cannot " + verb + b" in current state (TLS required)"
            raise FatalClientError(ErrorCode.E_INVALID, text)
        allowed = _ALLOWED_STATES.get(verb)
        if allowed is not None and self.state not in allowed:
            raise FatalClientError(ErrorCode.E_INVALID, b"cannot " + verb + b" in current state")
        if verb == b"SUB" and not self.has_heartbeats:
            raise FatalClientError(ErrorCode.E_INVALID, "cannot SUB with heartbeats disabled")
        return not (verb == b"RDY" and self.state is ClientState.CLOSING)
