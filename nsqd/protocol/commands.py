"""The commands of the V2 protocol, as values; nsqd.protocol.command_parser makes them of bytes."""

from dataclasses import dataclass
from typing import TypeAlias


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

    No dataclass, as `MultiPublish` and `Finish`: these are made for every read, and a frozen
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


@dataclass(frozen=True, slots=True)
class DeferredPublish:
    """DPUB."""

    topic: str
    delay_ms: int
    body: bytes


class Finish:
    """FINs, one after the other."""

    __slots__ = ("ids",)

    def __init__(self, ids: list[bytes]) -> None:
        self.ids = ids


@dataclass(frozen=True, slots=True)
class Requeue:
    """REQ; a delay beyond the limit is not refused but shortened, by the handler."""

    message_id: bytes
    delay_ms: int


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
)


def describe(command: Command) -> str:
    """Return a command for the log, without bodies and secrets."""
    match command:
        case Publish(topic=topic, bodies=bodies):
            return f"PUB {topic} count={len(bodies)}"
        case MultiPublish(topic=topic, bodies=bodies):
            return f"MPUB {topic} count={len(bodies)}"
        case DeferredPublish(topic=topic, delay_ms=delay_ms):
            return f"DPUB {topic} {delay_ms}"
        case Finish(ids=ids):
            return f"FIN {b' '.join(ids).decode('ascii', 'replace')}"
        case Identify() | Auth():
            return type(command).__name__
        case _:
            return str(command)
