"""Dead letters: messages beyond a limit that are published to another topic instead of dropped.

A message in limbo has left its queue and is not yet safe in the dead-letter topic. Until it is, it
keeps its record on disk, so that after a crash it is back in its queue. If the dead-letter topic
refuses it (full disk, full queue, shutdown), it stays in limbo and is published again later.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import TypeAlias

from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.queue.batch import Message
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.scheduler import Scheduler, Timer
from nsqd.protocol.names import is_ephemeral, is_valid_topic_name

logger = logging.getLogger(__name__)

RETRY_S = 1.0
# Beyond these bounds messages stay in their queue or go back to it. Refused messages may wait for
# ever; those that wait for a sync leave by themselves, so there may be more of them.
MAX_REFUSED_COUNT = 4096
MAX_REFUSED_BYTES = 16 * 1024 * 1024
MAX_UNSYNCED_COUNT = 65536
MAX_UNSYNCED_BYTES = 64 * 1024 * 1024

# Publishes bodies to the topic of that name; returns and raises as Topic.publish does.
Publish: TypeAlias = Callable[[str, Sequence[bytes]], Receipt | None]


def find_dead_letter_name(topic_name: str, suffix: str) -> str | None:
    """Return the name of a topic's dead-letter topic, None if it has none.

    An ephemeral topic has none: its dead-letter topic would stay for ever after it is gone. Neither
    has a topic whose name is too long for the suffix.
    """
    name = topic_name + suffix
    if not suffix or is_ephemeral(topic_name) or not is_valid_topic_name(name):
        return None
    return name


class Limbo:
    """The messages of one queue that are becoming dead letters."""

    __slots__ = (
        "_keys",
        "_name",
        "_on_safe",
        "_publish",
        "_refused",
        "_scheduler",
        "_timer",
        "_unsynced",
        "_unsynced_bytes",
        "_unsynced_count",
    )

    def __init__(
        self,
        name: str,
        publish: Publish,
        scheduler: Scheduler,
        on_safe: Callable[[list[Message]], object],
    ) -> None:
        """Args:
        name: the dead-letter topic.
        on_safe: told of messages that are safe there, so that their queue can forget them.
        """
        self._name = name
        self._publish = publish
        self._scheduler = scheduler
        self._on_safe = on_safe
        # Wait for the timer, which is set while there are any.
        self._refused: list[Message] = []
        # Published, and waiting for the sync of the dead-letter topic.
        self._unsynced: dict[int, list[Message]] = {}
        self._unsynced_count = 0
        self._unsynced_bytes = 0
        self._keys = count()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._refused) + self._unsynced_count

    @property
    def has_room(self) -> bool:
        """Whether more messages may be added."""
        if self._unsynced_count >= MAX_UNSYNCED_COUNT or self._unsynced_bytes >= MAX_UNSYNCED_BYTES:
            return False
        return len(self._refused) < MAX_REFUSED_COUNT and (
            not self._refused or _body_bytes(self._refused) < MAX_REFUSED_BYTES
        )

    def add(self, messages: list[Message]) -> None:
        """Publish messages as dead letters, at once or after those that were refused."""
        if self._timer is not None:
            self._refused += messages
        else:
            self._publish_all(messages)

    def copy(self) -> list[Message]:
        """Return all messages, which stay here."""
        return [*self._refused, *chain.from_iterable(self._unsynced.values())]

    def clear(self) -> list[Message]:
        """Forget all messages and return them."""
        messages = self._refused
        for unsynced in self._unsynced.values():
            messages += unsynced
        self._refused = []
        self._unsynced = {}
        self._unsynced_count = self._unsynced_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def _publish_all(self, messages: list[Message]) -> None:
        try:
            receipt = self._publish(self._name, [message[3] for message in messages])
        except (ClosedError, DepthLimitError, OSError) as error:
            self._refuse(messages, error)
            return
        if receipt is None:
            self._on_safe(messages)
            return
        key = next(self._keys)
        self._unsynced[key] = messages
        self._unsynced_count += len(messages)
        self._unsynced_bytes += _body_bytes(messages)
        receipt.when_done(lambda error: self._end_sync(key, error))

    def _end_sync(self, key: int, error: Exception | None) -> None:
        messages = self._unsynced.pop(key, None)
        if messages is None:
            return  # cleared meanwhile
        self._unsynced_count -= len(messages)
        self._unsynced_bytes -= _body_bytes(messages)
        if error is not None:
            # The dead-letter topic may have them twice in the end, but it will have them.
            self._refuse(messages, error)
        else:
            self._on_safe(messages)

    def _refuse(self, messages: list[Message], error: Exception) -> None:
        logger.error(
            "TOPIC(%s): failed to take %d dead letters - %s", self._name, len(messages), error
        )
        self._refused += messages
        if self._timer is None:
            when = self._scheduler.time() + RETRY_S
            self._timer = self._scheduler.call_at(when, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        messages, self._refused = self._refused, []
        if messages:
            self._publish_all(messages)


def _body_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message[3]) for message in messages)
