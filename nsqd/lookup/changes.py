"""LookupChanges: the names that one nsqlookupd has yet to hear of; a set, not a log of events.

A name stays noted until its commands are made, and these describe the broker at that moment. So a
topic that is deleted and made anew never ends up unregistered, in whichever order the changes were
noted, and churn takes no more room than the names it is about. No waiting, no sockets.
"""

from collections.abc import Iterator, Mapping

from nsqd.broker.topic import Topic
from nsqd.protocol.lookup import encode_register, encode_unregister


class _TopicChanges:
    """The changes of one topic since its last commands."""

    __slots__ = ("channels", "is_gone", "is_new")

    def __init__(self) -> None:
        self.is_new = False  # unknown to nsqlookupd: register the topic with all its channels
        self.is_gone = False  # deleted, though a topic of the name may exist again
        self.channels: dict[str, None] = {}  # came or went; a set that keeps its order


class LookupChanges:
    """Collect the names that changed; make commands of them when they can be sent."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        """Args: topics: the topics of the broker, which changes them."""
        self._topics = topics
        self._changes: dict[str, _TopicChanges] = {}
        self._count = 0
        # Topics still to be registered after a connection was made, as their names were then: to
        # note thousands of them one by one would take milliseconds.
        self._unregistered: list[str] = []

    def __len__(self) -> int:
        """Return the number of names noted."""
        return self._count + len(self._unregistered)

    def note(self, topic: str, channel: str | None) -> None:
        """Note that a topic (channel None) or channel has come or gone, after the fact."""
        changes = self._ensure(topic)
        if channel is not None:
            if channel not in changes.channels:
                changes.channels[channel] = None
                self._count += 1
        elif topic in self._topics:
            changes.is_new = True
        else:
            changes.is_gone = True

    def note_everything(self) -> None:
        """Note all topics anew, for an nsqlookupd that has just been connected to."""
        self.clear()
        self._unregistered = list(self._topics)[::-1]

    def clear(self) -> None:
        """Forget all names."""
        self._changes.clear()
        self._count = 0
        self._unregistered.clear()

    def pop_commands(self, max_commands: int) -> list[bytes]:
        """Return commands for the names noted, and forget these names, topic by topic.

        There are more than `max_commands` only if one topic alone needs more.
        """
        commands: list[bytes] = []
        while self._unregistered and len(commands) < max_commands:
            topic = self._topics.get(self._unregistered.pop())
            if topic is not None:
                commands.extend(_register(topic))
        while self._changes and len(commands) < max_commands:
            name = next(iter(self._changes))
            changes = self._changes.pop(name)
            self._count -= 1 + len(changes.channels)
            commands.extend(self._commands(name, changes))
        return commands

    def _ensure(self, topic: str) -> _TopicChanges:
        changes = self._changes.get(topic)
        if changes is None:
            changes = self._changes[topic] = _TopicChanges()
            self._count += 1
        return changes

    def _commands(self, name: str, changes: _TopicChanges) -> Iterator[bytes]:
        topic = self._topics.get(name)
        if changes.is_gone or topic is None:
            # A topic that came back is unregistered too: it ends a tombstone, which was for the
            # old one. Channels come first, as ephemeral ones leave a trace in nsqlookupd otherwise.
            for channel in changes.channels:
                yield encode_unregister(name, channel)
            yield encode_unregister(name)
            if topic is not None:
                yield from _register(topic)
        elif changes.is_new:
            yield from _register(topic)
        else:
            for channel in changes.channels:
                if channel in topic.channels:
                    yield encode_register(name, channel)
                else:
                    yield encode_unregister(name, channel)


def _register(topic: Topic) -> Iterator[bytes]:
    """Register a topic by its channels, each of which stands for the topic too."""
    if not topic.channels:
        yield encode_register(topic.name)
    for channel in topic.channels:
        yield encode_register(topic.name, channel)
