"""Ledger: what the clients know, and what they may therefore expect after a crash.

Of each message: sent at which position (of the daemon's journal; 0 without one), acknowledged or
not, for which channels, and in each channel whether a FIN was written, whether it must have
counted, and whether the message may have been dropped with others. From that `expect` says, for a
crash at a position, what every channel must have, may have and must not have any more.

The channel that a topic gets first is always `FIRST_CHANNEL` and is never deleted alone, so what
was published while there was no channel is due there.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.faults.client import HttpLink, TcpLink
from tests.support.faults.power_cut import SendIndex

FIRST_CHANNEL = "c0"
NEVER = 2**62
AT_THE_END = NEVER - 1  # a crash after everything that happened
# A delivery that times out on its way can be overtaken by the next one, to another consumer.
ATTEMPTS_SLACK = 3

Place = tuple[str, str]  # topic, channel


class WrongDeliveryError(AssertionError):
    """The daemon delivered what nobody sent there, or a damaged body."""


@dataclass(slots=True)
class Sent:
    """A published message."""

    body: bytes
    topic: str
    channels: frozenset[str]  # where it must turn up once it is acknowledged
    position: int
    is_delayed: bool = False
    is_acknowledged: bool = False
    ack_port: int = 0
    ack_end: int = 0
    acked_position: int | None = None  # looked up in the journal, or known from before


@dataclass(slots=True)
class ChannelBook:
    """What is known of the messages of one channel, by their bodies."""

    finished: dict[bytes, int] = field(default_factory=dict)  # position before the FIN
    dropped: dict[bytes, int] = field(default_factory=dict)  # position before the empty or delete
    gone: dict[bytes, int] = field(default_factory=dict)  # from here on it must not come again
    seen: dict[bytes, int] = field(default_factory=dict)  # deliveries that were read
    # Connections that ended with messages unread: each may have cost an attempt.
    break_count: int = 0


@dataclass(slots=True)
class Drop:
    """An empty or delete under way, which takes what is published meanwhile or not."""

    topic: str
    channel: str | None
    position: int
    certain: set[bytes]


@dataclass(slots=True)
class Expectation:
    """What a start after a crash must show, by channel."""

    required: dict[Place, set[bytes]]
    gone: dict[Place, set[bytes]]
    allowed: dict[str, set[bytes]]  # by topic
    most_attempts: dict[Place, dict[bytes, int]]
    fewest_attempts: dict[Place, dict[bytes, int]]
    # What the archive must have, if there is one, by topic.
    history: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))


class Ledger:
    """The books of all clients of one daemon."""

    def __init__(self, read_clock: Callable[[], int] = lambda: 0) -> None:
        """Args: read_clock: the present position in the journal."""
        self.read_clock = read_clock
        self.messages: dict[bytes, Sent] = {}
        # Channels whose making was acknowledged.
        self.channels: dict[str, set[str]] = {}
        # Only while nothing can have been stored twice does a FIN take a message away for good.
        self.has_crashed = False
        self._books: defaultdict[Place, ChannelBook] = defaultdict(ChannelBook)
        self._drops: list[Drop] = []
        self._was_dropping = False
        # What was acknowledged in earlier lives, to topics that were not deleted since.
        self._history: defaultdict[str, set[bytes]] = defaultdict(set)
        self._numbers = itertools.count()

    @property
    def topics(self) -> list[str]:
        """All topics that may exist."""
        return list(self.channels)

    def book(self, topic: str, channel: str) -> ChannelBook:
        """The book of a channel."""
        return self._books[topic, channel]

    def next_number(self) -> int:
        """A number for a body that no other has."""
        return next(self._numbers)

    # --- what clients do

    def send(self, topic: str, bodies: Sequence[bytes], *, is_delayed: bool = False) -> list[Sent]:
        """Note messages that are about to be published with one command."""
        channels = frozenset({FIRST_CHANNEL, *self.channels.setdefault(topic, set())})
        position = self.read_clock()
        batch = [Sent(body, topic, channels, position, is_delayed) for body in bodies]
        self.messages.update((sent.body, sent) for sent in batch)
        for drop in self._drops:
            if drop.topic == topic:
                self._mark_dropped(drop, batch)
        return batch

    def acknowledge(self, batch: Iterable[Sent], link: TcpLink | HttpLink) -> None:
        """Note that the OK for messages has just been read."""
        for sent in batch:
            sent.is_acknowledged = True
            sent.ack_port, sent.ack_end = link.port, link.read_bytes

    def deliver(self, topic: str, channel: str, body: bytes, attempts: int) -> None:
        """Note a delivery.

        Raises:
            WrongDeliveryError: it cannot be right.
        """
        sent = self.messages.get(body)
        if sent is None or sent.topic != topic:
            raise WrongDeliveryError(f"{topic}:{channel} got {body[:60]!r}, which was not sent")
        book = self._books[topic, channel]
        seen = book.seen.get(body, 0) + 1
        book.seen[body] = seen
        if not 1 <= attempts <= seen + book.break_count + ATTEMPTS_SLACK:
            raise WrongDeliveryError(
                f"{topic}:{channel} got {body[:60]!r} with attempts {attempts}, seen {seen} times,"
                f" {book.break_count} connections broken"
            )

    def finish(self, topic: str, channel: str, body: bytes) -> None:
        """Note that a FIN is about to be written."""
        self._books[topic, channel].finished.setdefault(body, self.read_clock())

    def finish_for_sure(self, topic: str, channel: str, bodies: Iterable[bytes]) -> None:
        """Note that the FINs of these were heard long enough ago to have been synced."""
        if not self.has_crashed:
            position = self.read_clock()
            self._books[topic, channel].gone.update(dict.fromkeys(bodies, position))

    def begin_drop(self, topic: str, channel: str | None) -> Drop:
        """Note that a channel, or if None a topic with all of them, is about to be emptied."""
        batch = [sent for sent in self.messages.values() if sent.topic == topic]
        certain = {sent.body for sent in batch if sent.is_acknowledged}
        drop = Drop(topic, channel, self.read_clock(), certain)
        self._drops.append(drop)
        self._mark_dropped(drop, batch)
        if channel is None:
            self._history.pop(topic, None)  # emptied or deleted, and the archive with it
        return drop

    def end_drop(self, drop: Drop, *, is_certain: bool) -> None:
        """Note that it is over.

        Args:
            is_certain: what had been acknowledged before must never come again.
        """
        self._drops.remove(drop)
        if is_certain and not self.has_crashed:
            position = self.read_clock()
            for body in drop.certain:
                channels = self.messages[body].channels if drop.channel is None else [drop.channel]
                for channel in channels:
                    self._books[drop.topic, channel].gone.setdefault(body, position)

    @property
    def had_open_drops(self) -> bool:
        """Whether something is being emptied or deleted, or was at an earlier crash."""
        return bool(self._drops) or self._was_dropping

    def _mark_dropped(self, drop: Drop, batch: Iterable[Sent]) -> None:
        for sent in batch:
            for channel in sent.channels if drop.channel is None else (drop.channel,):
                self._books[drop.topic, channel].dropped.setdefault(sent.body, drop.position)

    # --- what they expect

    def expect(
        self,
        position: int = AT_THE_END,
        sends: SendIndex | None = None,
        *,
        is_graceful: bool = False,
        acked_before: int | None = None,
    ) -> Expectation:
        """What must be there after a crash at a position, or after a graceful stop.

        Args:
            sends: when acknowledgements left the daemon, if the journal tells.
            acked_before: only what was acknowledged before this position is due.
        """
        due = position if acked_before is None else acked_before
        expected = Expectation({}, {}, {}, {}, {})
        for topic, bodies in self._history.items():
            expected.history[topic] |= bodies
        for topic in self.channels:
            expected.allowed[topic] = set()
            for channel in self._places(topic):
                place = (topic, channel)
                book = self._books[place]
                expected.required[place] = set()
                expected.gone[place] = {
                    body for body, when in book.gone.items() if when <= position
                }
                expected.most_attempts[place] = {
                    body: count + book.break_count + ATTEMPTS_SLACK
                    for body, count in book.seen.items()
                }
                if is_graceful and not self.has_crashed:
                    expected.fewest_attempts[place] = dict(book.seen)
        for sent in self.messages.values():
            if sent.position <= position:
                expected.allowed[sent.topic].add(sent.body)
                if self._acked_position(sent, sends) < due:
                    self._require(sent, expected, position)
                    if all(
                        self._books[sent.topic, channel].dropped.get(sent.body, NEVER) > position
                        for channel in sent.channels
                    ):
                        expected.history[sent.topic].add(sent.body)
        return expected

    def _places(self, topic: str) -> set[str]:
        known = {channel for name, channel in self._books if name == topic}
        return {FIRST_CHANNEL, *known, *self.channels[topic]}

    def _acked_position(self, sent: Sent, sends: SendIndex | None) -> int:
        if sent.acked_position is None:
            if not sent.is_acknowledged:
                return NEVER
            sent.acked_position = 0
            if sends is not None:
                sent.acked_position = sends.find(sent.ack_port, sent.ack_end, sent.position)
        return sent.acked_position

    def _require(self, sent: Sent, expected: Expectation, position: int) -> None:
        for channel in sent.channels:
            book = self._books[sent.topic, channel]
            if (
                book.finished.get(sent.body, NEVER) > position
                and book.dropped.get(sent.body, NEVER) > position
            ):
                expected.required.setdefault((sent.topic, channel), set()).add(sent.body)

    def keep_untouched(self, expected: Expectation) -> None:
        """Require only what no consumer has had and nothing has kept back."""
        for place, bodies in expected.required.items():
            seen = self._books[place].seen
            expected.required[place] = {
                body for body in bodies if body not in seen and not self.messages[body].is_delayed
            }

    def carry_on(self, expected: Expectation, *, has_crashed: bool = True) -> None:
        """Go on after a crash, or a graceful stop, that left what was expected."""
        self.has_crashed |= has_crashed
        self._was_dropping = self.had_open_drops
        self._drops.clear()
        for topic, bodies in expected.history.items():
            self._history[topic] |= bodies
        allowed = set().union(*expected.allowed.values())
        self.messages = {body: sent for body, sent in self.messages.items() if body in allowed}
        holders: defaultdict[bytes, set[str]] = defaultdict(set)
        for (_, channel), bodies in expected.required.items():
            for body in bodies:
                holders[body].add(channel)
        for body, sent in self.messages.items():
            sent.channels = frozenset(holders[body])
            sent.position = 0
            sent.acked_position = 0 if holders[body] else None
            sent.is_acknowledged = False
        for place, book in self._books.items():
            book.finished.clear()
            book.dropped.clear()
            book.gone = dict.fromkeys(expected.gone.get(place, ()), 0)
            # What was on its way to consumers when the daemon ended has been attempted too.
            book.break_count += 1
        for channels in self.channels.values():
            channels.clear()
