"""Dead letters: messages that are not to be delivered, on their way to another topic.

A message in limbo is out of its queue and not yet safe in the dead-letter topic. It keeps its
record on disk until it is: a crash brings it back to its queue, never to nowhere. What the other
topic refuses (a full disk, a full queue, a shutdown) stays in limbo and is tried again.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.queue.batch import Message
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.scheduler import Scheduler, Timer
from nsqd.protocol.names import is_ephemeral, is_valid_topic_name

logger = logging.getLogger(__name__)

RETRY_S = 1.0
# Beyond this, what can't be buried now stays in its queue, or goes back to it. A disk that syncs
# gives room again by itself, so that one may have more in hand than one that refuses.
MAX_REFUSED_COUNT = 4096
MAX_REFUSED_BYTES = 16 * 1024 * 1024
MAX_UNSYNCED_COUNT = 65536
MAX_UNSYNCED_BYTES = 64 * 1024 * 1024

# Publishes bodies to a topic; what it returns and raises is as with Topic.publish.
Publish: TypeAlias = Callable[[str, Sequence[bytes]], Receipt | None]


def find_dead_letter_name(topic_name: str, suffix: str) -> str | None:
    """Return the name of a topic's dead-letter topic, None if it has none.

    That of an ephemeral topic could not be told from one that is used no more, and would stay for
    ever; and a name can be too long already.
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
        "_on_buried",
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
        on_buried: Callable[[list[Message]], object],
    ) -> None:
        """Args:
        name: the dead-letter topic.
        on_buried: told of messages that are safe there: they can be forgotten.
        """
        self._name = name
        self._publish = publish
        self._scheduler = scheduler
        self._on_buried = on_buried
        self._refused: list[Message] = []
        # Published, and waiting for the disk.
        self._unsynced: dict[int, list[Message]] = {}
        self._unsynced_count = 0
        self._unsynced_bytes = 0
        self._keys = count()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._refused) + self._unsynced_count

    @property
    def has_room(self) -> bool:
        """Whether more messages may be given to it."""
        if self._unsynced_count >= MAX_UNSYNCED_COUNT or self._unsynced_bytes >= MAX_UNSYNCED_BYTES:
            return False
        return len(self._refused) < MAX_REFUSED_COUNT and (
            not self._refused or _body_bytes(self._refused) < MAX_REFUSED_BYTES
        )

    def add(self, messages: list[Message]) -> None:
        """Bury messages: now if nothing is in the way, else as soon as nothing is."""
        if self._timer is not None:
            self._refused += messages  # its topic refuses: nobody has to be asked for each of them
        else:
            self._bury(messages)

    def clear(self) -> list[Message]:
        """Forget everything and return it."""
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

    def _bury(self, messages: list[Message]) -> None:
        try:
            receipt = self._publish(self._name, [message[3] for message in messages])
        except (ClosedError, DepthLimitError, OSError) as error:
            self._refuse(messages, error)
            return
        if receipt is None:
            self._on_buried(messages)
            return
        key = next(self._keys)
        self._unsynced[key] = messages
        self._unsynced_count += len(messages)
        self._unsynced_bytes += _body_bytes(messages)
        receipt.when_done(lambda error: self._synced(key, error))

    def _synced(self, key: int, error: OSError | None) -> None:
        messages = self._unsynced.pop(key, None)
        if messages is None:
            return  # cleared meanwhile
        self._unsynced_count -= len(messages)
        self._unsynced_bytes -= _body_bytes(messages)
        if error is not None:
            self._refuse(messages, error)  # it may be there twice in the end, but it will be there
        else:
            self._on_buried(messages)

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
            self._bury(messages)


def _body_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message[3]) for message in messages)
