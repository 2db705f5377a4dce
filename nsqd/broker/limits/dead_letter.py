"""Dead letters: messages beyond a limit that are published to another topic instead of dropped.

A message in limbo has left its queue and is not yet safe in the dead-letter topic. Until it is, it
keeps its record on disk, so that after a crash it is back in its queue; a message that has a record
is a dead letter on disk. If the dead-letter topic refuses it (full disk, full queue, shutdown), it
stays in limbo and is published again later. `causes` has where each dead letter comes from.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TypeAlias

from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.limits.causes import Cause
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

# Published at once; the rest follows in later turns.
MAX_MESSAGES_PER_STEP = 256

# A message, and the limit for which it left its queue.
Letter: TypeAlias = tuple[Message, str]


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Messages that are published to a dead-letter topic together."""

    bodies: Sequence[bytes]
    causes: Sequence[Cause]
    is_stored: bool  # they are on the disk of their queue


# Publishes to the topic of that name; returns and raises as Topic.publish_moved does.
Publish: TypeAlias = Callable[[str, DeadLetters], Receipt | None]


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
        "_is_stepping",
        "_keys",
        "_name",
        "_on_safe",
        "_publish",
        "_queue_names",
        "_scheduler",
        "_timer",
        "_unsynced",
        "_unsynced_bytes",
        "_unsynced_count",
        "_waiting",
    )

    def __init__(
        self,
        name: str,
        queue_names: tuple[str, str],
        publish: Publish,
        scheduler: Scheduler,
        on_safe: Callable[[list[Message]], object],
    ) -> None:
        """Args:
        name: the dead-letter topic.
        queue_names: topic and channel of the queue; an empty channel is the topic's own queue.
        on_safe: told of messages that are safe there, so that their queue can forget them.
        """
        self._name = name
        self._queue_names = queue_names
        self._publish = publish
        self._scheduler = scheduler
        self._on_safe = on_safe
        # To be published: in the next turns, or when the timer fires that is set after a refusal.
        self._waiting: list[Letter] = []
        self._is_stepping = False
        # Published, and waiting for the sync of the dead-letter topic.
        self._unsynced: dict[int, list[Letter]] = {}
        self._unsynced_count = 0
        self._unsynced_bytes = 0
        self._keys = count()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting) + self._unsynced_count

    @property
    def has_room(self) -> bool:
        """Whether more messages may be added."""
        if self._unsynced_count >= MAX_UNSYNCED_COUNT or self._unsynced_bytes >= MAX_UNSYNCED_BYTES:
            return False
        return len(self._waiting) < MAX_REFUSED_COUNT and (
            not self._waiting or _body_bytes(self._waiting) < MAX_REFUSED_BYTES
        )

    def add(self, messages: list[Message], reason: str) -> None:
        """Publish messages as dead letters, at once or after those that wait."""
        self._waiting += [(message, reason) for message in messages]
        if self._timer is None and not self._is_stepping and self._step():
            self._go_on()

    def copy(self) -> list[Message]:
        """Return all messages, which stay here."""
        letters = (*self._waiting, *chain.from_iterable(self._unsynced.values()))
        return [message for message, _ in letters]

    def clear(self) -> list[Message]:
        """Forget all messages and return them."""
        messages = self.copy()
        self._waiting = []
        self._unsynced = {}
        self._unsynced_count = self._unsynced_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def move(self, name: str, on_safe: Callable[[list[Message]], object]) -> list[Message]:
        """Belong to other limits from now on; return the messages that are not published yet.

        The others stay: back in their queue, they would be delivered although they are dead
        letters.
        """
        self._name = name
        self._on_safe = on_safe
        messages = [message for message, _ in self._waiting]
        self._waiting = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages

    def _go_on(self) -> None:
        self._is_stepping = True
        self._scheduler.share(self._step_on)

    def _step_on(self) -> bool:
        self._is_stepping = self._timer is None and self._step()
        return self._is_stepping

    def _step(self) -> bool:
        """Publish some of the messages that wait; return whether others can follow at once."""
        letters = self._waiting[:MAX_MESSAGES_PER_STEP]
        if not letters:
            return False
        is_stored = _is_stored(letters[0])
        if any(_is_stored(letter) is not is_stored for letter in letters):
            # Those in memory and those on disk are published apart.
            letters = letters[: [_is_stored(each) for each in letters].index(not is_stored)]
        del self._waiting[: len(letters)]
        return self._publish_all(letters, is_stored=is_stored) and bool(self._waiting)

    def _publish_all(self, letters: list[Letter], *, is_stored: bool) -> bool:
        """Publish messages; return whether they were not refused."""
        dead_letters = DeadLetters(
            [message[3] for message, _ in letters],
            [
                Cause(*self._queue_names, reason, message[2], message[0], message[1])
                for message, reason in letters
            ],
            is_stored,
        )
        try:
            receipt = self._publish(self._name, dead_letters)
        except (ClosedError, DepthLimitError, OSError) as error:
            self._refuse(letters, error)
            return False
        if receipt is None:
            self._on_safe([message for message, _ in letters])
            return True
        key = next(self._keys)
        self._unsynced[key] = letters
        self._unsynced_count += len(letters)
        self._unsynced_bytes += _body_bytes(letters)
        receipt.when_done(lambda error: self._end_sync(key, error))
        return True

    def _end_sync(self, key: int, error: Exception | None) -> None:
        letters = self._unsynced.pop(key, None)
        if letters is None:
            return  # cleared meanwhile
        self._unsynced_count -= len(letters)
        self._unsynced_bytes -= _body_bytes(letters)
        if error is not None:
            # The dead-letter topic may have them twice in the end, but it will have them.
            self._refuse(letters, error)
        else:
            self._on_safe([message for message, _ in letters])

    def _refuse(self, letters: list[Letter], error: Exception) -> None:
        logger.error(
            "TOPIC(%s): failed to take %d dead letters - %s", self._name, len(letters), error
        )
        self._waiting[:0] = letters
        if self._timer is None:
            when = self._scheduler.time() + RETRY_S
            self._timer = self._scheduler.call_at(when, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        if not self._is_stepping and self._step():
            self._go_on()


def _is_stored(letter: Letter) -> bool:
    return letter[0][4] is not None


def _body_bytes(letters: Sequence[Letter]) -> int:
    return sum(len(message[3]) for message, _ in letters)
