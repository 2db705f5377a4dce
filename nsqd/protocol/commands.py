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
    """A run of PUBs to one topic, or one MPUB."""

    __slots__ = ("bodies", "ok_count", "topic", "verb")

    def __init__(self, verb: str, topic: str, bodies: list[bytes], ok_count: int) -> None:
        self.verb = verb
        self.topic = topic
        self.bodies = bodies
        self.ok_count = ok_count  # how many OKs the client waits for


@dataclass(frozen=True, slots=True)
class DeferredPublish:
    """DPUB."""

    topic: str
    delay_ms: int
    body: bytes


class Finish:
    """A run of FINs."""

    __slots__ = ("ids",)

    def __init__(self, ids: list[bytes]) -> None:
        self.ids = ids


@dataclass(frozen=True, slots=True)
class Requeue:
    """REQ; its delay may be beyond what is allowed, which is clamped, not refused."""

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
    """Say what a command is about; never a body or a secret."""
    match command:
        case Publish(verb=verb, topic=topic, bodies=bodies):
            return f"{verb} {topic} count={len(bodies)}"
        case DeferredPublish(topic=topic, delay_ms=delay_ms):
            return f"DPUB {topic} {delay_ms}"
        case Finish(ids=ids):
            return f"FIN {b' '.join(ids).decode('ascii', 'replace')}"
        case Identify() | Auth():
            return type(command).__name__
        case _:
            return str(command)
