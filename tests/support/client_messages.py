"""Messages of the client without a connection: what is answered is noted."""

from nsqd.client.consume.inbox import Inbox
from nsqd.client.consume.message import Message, MessageState, RequeueDelays


class FakeOrigin:
    """A connection that notes the answers."""

    topic = "topic"
    channel = "channel"
    nsqd = "127.0.0.1:4150"
    delays = RequeueDelays()

    def __init__(self, inbox: Inbox | None = None) -> None:
        self.answers: list[tuple[object, ...]] = []
        self._inbox = inbox

    def finish(self, message: Message) -> None:
        """Note a FIN."""
        self._note(message, "FIN")

    def finish_many(self, messages: list[Message]) -> None:
        """Note FINs."""
        for message in messages:
            self._note(message, "FIN")

    def requeue(self, message: Message, delay_s: float, *, backoff: bool) -> None:
        """Note a REQ."""
        self._note(message, "REQ", delay_s, backoff)

    def touch(self, message: Message) -> None:
        """Note a TOUCH."""
        self.answers.append(("TOUCH", message.id))

    def forget(self, message: Message) -> None:
        """Note a message that waited too long."""
        self.answers.append(("forgotten", message.id))

    def answer_lost(self, message: Message) -> None:
        """Note an answer that could not be sent."""
        self.answers.append(("lost", message.id))

    def _note(self, message: Message, *answer: object) -> None:
        message.state = MessageState.ANSWERED
        self.answers.append((answer[0], message.id, *answer[1:]))
        if self._inbox is not None:
            self._inbox.answered()


def make_message(
    number: int,
    *,
    attempts: int = 1,
    deadline: float = float("inf"),
    body: bytes = b"body",
    origin: FakeOrigin | None = None,
) -> Message:
    """Return a message as it is when it has arrived."""
    message_id = b"%016x" % number
    return Message(origin or FakeOrigin(), message_id, attempts, number, body, 0.0, deadline)
