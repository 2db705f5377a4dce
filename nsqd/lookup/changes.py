"""What one nsqlookupd has yet to be told: a set of names, not a log of events.

A name stays noted until it is sent, and what is said of it is how things are at that moment. So a
topic that is deleted and made anew never ends up unregistered, whatever the order of the notices,
and churn takes no more room than the names it is about. Nothing here waits or knows of sockets.
"""

from collections.abc import Iterator, Mapping

from nsqd.broker.topic import Topic
from nsqd.protocol.lookup import encode_register, encode_unregister


class _TopicChanges:
    """What has happened to one topic since it was last spoken of."""

    __slots__ = ("channels", "is_gone", "is_new")

    def __init__(self) -> None:
        self.is_new = False  # nsqlookupd knows nothing of it: all of it is to be registered
        self.is_gone = False  # it was deleted, though it may have come back
        self.channels: dict[str, None] = {}  # that came or went; a set that keeps its order


class LookupChanges:
    """The names that changed, turned into commands when there is somebody to tell."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        """Args: topics: the topics of the broker, which others change."""
        self._topics = topics
        self._changes: dict[str, _TopicChanges] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many names are noted."""
        return self._count

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
        """Forget what was noted and begin with all there is: nsqlookupd knows nothing of us."""
        self.clear()
        for name in self._topics:
            self._ensure(name).is_new = True

    def clear(self) -> None:
        """Forget what was noted."""
        self._changes.clear()
        self._count = 0

    def take(self, max_commands: int) -> list[bytes]:
        """Return the commands for what is noted, and forget it, topic by topic.

        There are more than `max_commands` only if one topic alone needs more.
        """
        commands: list[bytes] = []
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
