"""Message: handed out by a consumer, to be answered once: finished or requeued.

The answers are plain calls, because nsqd confirms none of them; they leave together at the end of
the loop's turn.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from nsqd.client.errors import AlreadyAnsweredError


@dataclass(frozen=True, slots=True)
class RequeueDelays:
    """After how long a message comes again, if its handler does not say: longer each time."""

    step_s: float = 90.0
    max_s: float = 900.0

    def find_s(self, attempts: int) -> float:
        """Return the delay after so many attempts."""
        return min(self.step_s * attempts, self.max_s)


class Requeue(Exception):  # noqa: N818 - raised by handlers as a request, not as an error
    """Raise it in a handler, or within `async with message`, to have the message come again.

    Args:
        delay: seconds; None for 90 s times the attempts, at most 15 minutes.
        backoff: whether this counts as a failure that slows the consumer down.
    """

    def __init__(self, delay: float | None = None, *, backoff: bool = True) -> None:
        super().__init__(delay, backoff)
        self.delay = delay
        self.backoff = backoff


class MessageState(enum.Enum):
    """The answer to a delivery."""

    BUFFERED = enum.auto()  # it waits to be handed out
    HANDED = enum.auto()
    ANSWERED = enum.auto()
    EXPIRED = enum.auto()  # its time is over, or it was delivered anew
    LOST = enum.auto()  # its connection has ended: nsqd delivers it again


# Lookups of an Enum's members are slow, and these are made for each message.
BUFFERED: Final = MessageState.BUFFERED
HANDED: Final = MessageState.HANDED
ANSWERED: Final = MessageState.ANSWERED
EXPIRED: Final = MessageState.EXPIRED
LOST: Final = MessageState.LOST


class Origin(Protocol):
    """The connection of a message, as the message sees it."""

    topic: str
    channel: str
    nsqd: str
    delays: RequeueDelays

    def finish(self, message: Message) -> None:
        """Send FIN."""

    def finish_many(self, messages: list[Message]) -> None:
        """Send FIN for each."""

    def requeue(self, message: Message, delay_s: float, *, backoff: bool) -> None:
        """Send REQ."""

    def touch(self, message: Message) -> None:
        """Send TOUCH."""

    def forget(self, message: Message) -> None:
        """Drop a message that waited too long to be handed out."""

    def answer_lost(self, message: Message) -> None:
        """Note an answer that no connection can carry."""


class Message:
    """One delivery of a message.

    Attributes:
        id: 16 bytes.
        attempts: how often it has been delivered; 1 is the first time.
        timestamp_ns: when it was published.
        deadline: when nsqd delivers it again unless it is answered or touched; of the loop's clock.
    """

    __slots__ = (
        "attempts",
        "body",
        "deadline",
        "id",
        "origin",
        "received_at",
        "state",
        "timestamp_ns",
    )

    def __init__(
        self,
        origin: Origin,
        message_id: bytes,
        attempts: int,
        timestamp_ns: int,
        body: bytes,
        received_at: float,
        deadline: float,
    ) -> None:
        """Made by the connection."""
        self.origin = origin
        self.id = message_id
        self.attempts = attempts
        self.timestamp_ns = timestamp_ns
        self.body = body
        self.received_at = received_at
        self.deadline = deadline
        self.state = BUFFERED

    def __repr__(self) -> str:
        """Leave out the body: it may be large, and secret."""
        text = self.id.decode("ascii", "replace")
        return f"<Message {text} attempts={self.attempts} bytes={len(self.body)}>"

    @property
    def topic(self) -> str:
        """The topic."""
        return self.origin.topic

    @property
    def channel(self) -> str:
        """The channel."""
        return self.origin.channel

    @property
    def nsqd(self) -> str:
        """The address of the nsqd that delivered it."""
        return self.origin.nsqd

    @property
    def is_answered(self) -> bool:
        """Whether no answer can be given any more."""
        return self.state is not HANDED

    def text(self) -> str:
        """Decode the body as UTF-8.

        Raises:
            UnicodeDecodeError: it is none.
        """
        return self.body.decode()

    def json(self) -> Any:
        """Decode the body as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(self.body)

    def fin(self) -> None:
        """Finish: the message is dealt with.

        Raises:
            AlreadyAnsweredError: it was answered, or has been delivered again.
        """
        if self.state is HANDED:
            self.origin.finish(self)
        else:
            self._refuse()

    def req(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Requeue: nsqd delivers the message again, after a delay.

        Args:
            delay: seconds; None for 90 s times the attempts, at most 15 minutes.
            backoff: whether this counts as a failure that slows the consumer down.

        Raises:
            AlreadyAnsweredError: it was answered, or has been delivered again.
        """
        if self.state is not HANDED:
            self._refuse()
            return
        if delay is None:
            delay = self.origin.delays.find_s(self.attempts)
        self.origin.requeue(self, delay, backoff=backoff)

    def touch(self) -> None:
        """Ask for more time: another msg_timeout from now.

        Raises:
            AlreadyAnsweredError: it was answered, or has been delivered again.
        """
        if self.state is HANDED:
            self.origin.touch(self)
        else:
            self._refuse()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Finish the message, or requeue it if the body raised; a `Requeue` ends here."""
        self.settle(error)
        return isinstance(error, Requeue)

    def settle(self, error: BaseException | None) -> None:
        """Give the answer that fits an outcome, unless one was given."""
        if self.state is not HANDED:
            return
        if error is None:
            self.fin()
        elif isinstance(error, Requeue):
            self.req(error.delay, backoff=error.backoff)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.req(0, backoff=False)
        else:
            self.req()

    def _refuse(self) -> None:
        if self.state is LOST:
            # The program could not know, and the message comes again anyway.
            self.origin.answer_lost(self)
            return
        text = "was delivered again" if self.state is EXPIRED else "is answered already"
        raise AlreadyAnsweredError(f"message {self.id.decode('ascii', 'replace')} {text}")


class Batch(Sequence[Message]):
    """Messages to be dealt with together; answered at once or one by one."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index: Any) -> Any:
        return self.messages[index]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, in order."""
        return [message.body for message in self.messages]

    def fin(self) -> None:
        """Finish every message that has no answer yet."""
        by_origin: dict[Origin, list[Message]] = {}
        for message in self.messages:
            if message.state is HANDED:
                by_origin.setdefault(message.origin, []).append(message)
        for origin, messages in by_origin.items():
            origin.finish_many(messages)

    def req(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Requeue every message that has no answer yet; a failure counts once."""
        for message in self.messages:
            if message.state is HANDED:
                message.req(delay, backoff=backoff)
                backoff = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Finish the messages, or requeue them if the body raised; a `Requeue` ends here."""
        if error is None:
            self.fin()
        elif isinstance(error, Requeue):
            self.req(error.delay, backoff=error.backoff)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.req(0, backoff=False)
        else:
            self.req()
        return isinstance(error, Requeue)
