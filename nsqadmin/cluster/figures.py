"""The figures of one node: its /stats as plain tuples, and the rates between two of them. Pure.

A node is a stranger: every number is checked to be one, and to be in bounds. A large cluster has
160,000 queues on its nodes: a node's figures are packed bytes, which become tuples when they are
read; a key is shared by all nodes that have it, and the order of the keys by a node's samples.
"""

import struct
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from nsqd.protocol.names import is_valid_topic_name

# A topic and one of its channels; the channel is "" for the topic's own queue.
Key: TypeAlias = tuple[str, str]
# Indexed by the constants below. The first ten are counts of the node.
Figures: TypeAlias = tuple[Any, ...]

DEPTH: Final = 0
BACKEND_DEPTH: Final = 1
IN_FLIGHT: Final = 2
DEFERRED: Final = 3
MESSAGE_COUNT: Final = 4
REQUEUE_COUNT: Final = 5
TIMEOUT_COUNT: Final = 6
CLIENTS: Final = 7
MESSAGE_BYTES: Final = 8
FINISH_COUNT: Final = 9  # an estimate, unless HAS_FINISH_COUNT
PAUSED: Final = 10
HAS_FINISH_COUNT: Final = 11
DISK_BYTES: Final = 12  # -1 if the node does not tell
EXTRA: Final = 13  # `Extra`, or None

# All of them but EXTRA.
_ROW: Final = struct.Struct("=10q2?q")
MAX_COUNT: Final = 2**63 - 1
MAX_QUEUES: Final = 200_000  # of one node
_LOSS_WORDS: Final = ("rejected_count", "dead_lettered_count")
# How many members a topic and a channel have in every /stats.
_TOPIC_MEMBERS: Final = 8
_CHANNEL_MEMBERS: Final = 12


class BadStatsError(ValueError):
    """The answer of a node is no /stats; the text says why."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Figures that few queues have: percentiles, localities, losses, history, dead letters."""

    latency_count: int = 0
    percentiles: tuple[tuple[float, float], ...] = ()  # quantile and ns
    localities: tuple[int, int, int] = (0, 0, 0)
    losses: tuple[tuple[str, int], ...] = ()
    archive: tuple[int, int, int, int] | None = None  # bytes, messages, oldest ns, dropped
    dead_letter_topic: str = ""

    @property
    def worst_ns(self) -> float | None:
        """The highest percentile, None if latencies are not measured."""
        return self.percentiles[-1][1] if self.percentiles and self.latency_count else None


NO_EXTRA: Final = Extra()


class Queues(Mapping[Key, Figures]):
    """The figures of a node's queues, 90 bytes for each."""

    __slots__ = ("_extras", "_rows", "index")

    def __init__(
        self, index: dict[Key, int], rows: bytes, extras: dict[int, Extra], earlier: "Queues | None"
    ) -> None:
        """Args: index: the number of each queue, in the order of the rows."""
        # Nearly always the same as before, and shared then.
        self.index: dict[Key, int] = (
            earlier.index if earlier is not None and index == earlier.index else index
        )
        self._rows = rows
        self._extras = extras

    def __getitem__(self, key: Key) -> Figures:
        number = self.index[key]
        return (*_ROW.unpack_from(self._rows, number * _ROW.size), self._extras.get(number))

    def __iter__(self) -> Iterator[Key]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)

    def items(self) -> ItemsView[Key, Figures]:
        """Return the queues with their figures."""
        return _Items(self)

    def values_in_order(self) -> Iterator[Figures]:
        """Give the figures in the order of the keys."""
        rows = _ROW.iter_unpack(self._rows)
        if not self._extras:
            return ((*row, None) for row in rows)
        find = self._extras.get
        return ((*row, find(number)) for number, row in enumerate(rows))

    def copy_parts(self) -> tuple[dict[Key, int], bytearray, dict[int, Extra]]:
        """Return what a reader changes: the numbers, the rows and the extras."""
        return dict(self.index), bytearray(self._rows), dict(self._extras)

    def is_aligned(self, other: object) -> bool:
        """Return whether another has the same queues in the same order."""
        return isinstance(other, Queues) and other.index is self.index


class _Items(ItemsView[Key, Figures]):
    """Walks the rows in place of finding each by its key."""

    _mapping: Queues

    def __iter__(self) -> Iterator[tuple[Key, Figures]]:
        return zip(self._mapping, self._mapping.values_in_order(), strict=True)


def beside(
    later: Mapping[Key, Figures], earlier: Mapping[Key, Figures]
) -> Iterator[tuple[Key, Figures, Figures | None]]:
    """Give each queue with its figures now and before, None if it was not there."""
    if isinstance(later, Queues) and later.is_aligned(earlier):
        assert isinstance(earlier, Queues)
        yield from zip(later, later.values_in_order(), earlier.values_in_order(), strict=True)
        return
    for key, figures in later.items():
        yield key, figures, earlier.get(key)


@dataclass(slots=True)
class Sample:
    """All figures of a node, at one moment."""

    time: float  # of the steady clock
    version: str = ""
    health: str = ""
    start_time_s: int = 0
    disk_free_bytes: int | None = None
    is_draining: bool = False
    queues: Mapping[Key, Figures] = field(default_factory=dict)
    seq: int | None = None  # of a node that tells what has changed since

    def topics(self) -> list[str]:
        """The names of its topics."""
        return [topic for topic, channel in self.queues if not channel]


class KeyTable:
    """Keys of queues, one object for each, which all nodes share."""

    def __init__(self) -> None:
        self._keys: dict[Key, Key] = {}

    def get(self, topic: str, channel: str) -> Key:
        """Return the key, made anew if it is not there yet."""
        key = (topic, channel)
        return self._keys.setdefault(key, key)

    def keep_only(self, used: "dict[Key, Any]") -> None:
        """Forget the keys that no queue has any more."""
        if len(self._keys) > 2 * len(used) + 1000:
            self._keys = {key: key for key in used}


def read_sample(
    document: object, time: float, keys: KeyTable, earlier: Sample | None = None
) -> Sample:
    """Read the answer to /stats?format=json.

    Args: earlier: the sample before, with which it shares what is the same.

    Raises:
        BadStatsError: it is something else.
    """
    if not isinstance(document, dict):
        raise BadStatsError("the answer to /stats is no object")
    topics = document.get("topics")
    if topics is not None and not isinstance(topics, list):
        raise BadStatsError("the topics in /stats are no list")
    reader = _QueueReader(keys)
    try:
        for topic in topics or ():
            reader.read_topic(topic)
    except (TypeError, KeyError, AttributeError, struct.error) as error:
        raise BadStatsError(f"/stats has a topic or channel that is wrong: {error!r}") from error
    return Sample(
        time=time,
        version=_text(document, "version"),
        health=_text(document, "health"),
        start_time_s=_count(document, "start_time") or 0,
        disk_free_bytes=_count(document, "disk_free_bytes"),
        is_draining=document.get("draining") is True,
        queues=reader.finish(earlier.queues if earlier is not None else None),
    )


def read_delta(
    document: object, time: float, keys: KeyTable, earlier: Sample | None = None
) -> Sample | None:
    """Read the answer to /stats?format=delta; None if it does not continue the sample before.

    Raises:
        BadStatsError: it is something else.
    """
    if not isinstance(document, dict):
        raise BadStatsError("the answer to /stats is no object")
    start_time_s = _count(document, "start_time") or 0
    known: Queues | None = None
    if document.get("full") is not True:
        is_continued = earlier is not None and earlier.start_time_s == start_time_s
        if earlier is None or not is_continued or not isinstance(earlier.queues, Queues):
            return None
        known = earlier.queues
    columns, rows, removed = (document.get(name) for name in ("columns", "rows", "removed"))
    if not (isinstance(columns, list) and isinstance(rows, list) and isinstance(removed, list)):
        raise BadStatsError("/stats has no columns, rows or removed queues")
    reader = _QueueReader(keys, known)
    try:
        for topic, channel in removed:
            reader.remove(topic, channel or "")
        for row in rows:
            reader.read_row(dict(zip(columns, row, strict=True)))
    except (TypeError, KeyError, AttributeError, ValueError, struct.error) as error:
        if isinstance(error, BadStatsError):
            raise
        raise BadStatsError(f"/stats has a row that is wrong: {error!r}") from error
    return Sample(
        time=time,
        version=_text(document, "version"),
        health=_text(document, "health"),
        start_time_s=start_time_s,
        disk_free_bytes=_count(document, "disk_free_bytes"),
        is_draining=document.get("draining") is True,
        queues=reader.finish(earlier.queues if earlier is not None else None),
        seq=_count(document, "seq"),
    )


class _QueueReader:
    """Reads the topics of a /stats, one by one, or the rows that have changed of those before."""

    def __init__(self, keys: KeyTable, known: "Queues | None" = None) -> None:
        """Args: known: the queues as they were; rows replace theirs."""
        self._keys = keys
        self._index: dict[Key, int] = {}
        self._rows = bytearray()
        self._extras: dict[int, Extra] = {}
        self._gone: set[int] = set()
        if known is not None:
            self._index, self._rows, self._extras = known.copy_parts()

    def finish(self, earlier: Mapping[Key, Figures] | None) -> Queues:
        """Return all that were read."""
        known = earlier if isinstance(earlier, Queues) else None
        if self._gone:
            self._close_gaps()
        return Queues(self._index, bytes(self._rows), self._extras, known)

    def read_topic(self, topic: dict[str, Any]) -> None:
        """Read a topic and its channels."""
        name = topic["topic_name"]
        if not is_valid_topic_name(name):
            raise BadStatsError("/stats has a topic with an invalid name")
        disk_bytes = topic.get("disk_bytes", -1)
        counts = (
            *(topic["depth"], topic["backend_depth"], 0, 0, topic["message_count"], 0, 0, 0),
            *(topic.get("message_bytes", 0), 0),
        )
        is_plain = len(topic) <= _TOPIC_MEMBERS + (disk_bytes >= 0)
        extra = _read_extra(topic, is_plain=is_plain)
        self._put(name, "", counts, (topic["paused"], True, disk_bytes), extra)
        for channel in topic["channels"] or ():
            self._read_channel(channel, name)

    def read_row(self, row: dict[str, Any]) -> None:
        """Read a row of a delta, new or in place of the one before."""
        topic, channel = row["topic"], row["channel"] or ""
        if not is_valid_topic_name(topic) or (channel and not is_valid_topic_name(channel)):
            raise BadStatsError("/stats has a queue with an invalid name")
        counts = (
            *(row["depth"], row["backend_depth"], row["in_flight_count"], row["deferred_count"]),
            *(row["message_count"], row["requeue_count"], row["timeout_count"]),
            *(row["client_count"], row["message_bytes"], row["finish_count"]),
        )
        more = row["more"]
        extra = None if more is None else _read_extra(more, is_plain=False)
        rest = (row["paused"], True, row["disk_bytes"])
        number = self._index.get((topic, channel))
        if number is None:
            self._put(topic, channel, counts, rest, extra)
            return
        self._gone.discard(number)
        _check_counts(topic, counts, rest)
        _ROW.pack_into(self._rows, number * _ROW.size, *counts, *rest)
        self._extras.pop(number, None)
        if extra is not None:
            self._extras[number] = extra

    def remove(self, topic: str, channel: str) -> None:
        """Forget a queue; one that is not known was made and deleted between two answers."""
        number = self._index.get((topic, channel))
        if number is not None:
            self._gone.add(number)

    def _close_gaps(self) -> None:
        """Leave out the rows of the queues that are gone."""
        size = _ROW.size
        index: dict[Key, int] = {}
        rows, extras = bytearray(), {}
        for key, number in self._index.items():
            if number not in self._gone:
                if number in self._extras:
                    extras[len(index)] = self._extras[number]
                index[key] = len(index)
                rows += self._rows[number * size : (number + 1) * size]
        self._index, self._rows, self._extras = index, rows, extras

    def _read_channel(self, channel: dict[str, Any], topic_name: str) -> None:
        name = channel["channel_name"]
        if not is_valid_topic_name(name):
            raise BadStatsError("/stats has a channel with an invalid name")
        depth, messages = channel["depth"], channel["message_count"]
        in_flight, deferred = channel["in_flight_count"], channel["deferred_count"]
        finished = channel.get("finish_count")
        has_finished = finished is not None
        if finished is None:
            # Emptying looks like finishing: callers say that it is an estimate.
            finished = max(messages - depth - in_flight - deferred, 0)
        counts = (
            *(depth, channel["backend_depth"], in_flight, deferred, messages),
            *(channel["requeue_count"], channel["timeout_count"], channel["client_count"]),
            *(0, finished),
        )
        disk_bytes = channel.get("disk_bytes", -1)
        is_plain = len(channel) <= _CHANNEL_MEMBERS + has_finished + (disk_bytes >= 0)
        extra = _read_extra(channel, is_plain=is_plain)
        self._put(topic_name, name, counts, (channel["paused"], has_finished, disk_bytes), extra)

    def _put(
        self,
        topic: str,
        channel: str,
        counts: tuple[int, ...],
        rest: tuple[Any, ...],
        extra: Extra | None,
    ) -> None:
        _check_counts(topic, counts, rest)
        index = self._index
        number = len(index)
        if index.setdefault(self._keys.get(topic, channel), number) != number:
            raise BadStatsError(f"/stats has a topic or a channel twice: {topic}")
        self._rows += _ROW.pack(*counts, *rest)
        if extra is not None:
            self._extras[number] = extra
        if number >= MAX_QUEUES:
            raise BadStatsError(f"/stats has more than {MAX_QUEUES} queues")


def _check_counts(topic: str, counts: tuple[int, ...], rest: tuple[Any, ...]) -> None:
    # Anything but a number fails in the comparison, or where it is packed.
    if min(counts) < 0 or max(counts) > MAX_COUNT or rest[2] > MAX_COUNT:
        raise BadStatsError(f"/stats has a count that is negative or too large at {topic}")


def _read_extra(queue: dict[str, Any], *, is_plain: bool) -> Extra | None:
    """Return the figures that few queues have.

    Args: is_plain: whether the queue has no more members than every queue.
    """
    latency = queue.get("e2e_processing_latency")
    percentiles = latency.get("percentiles") if latency else None
    if is_plain and not percentiles:
        return None
    archive = queue.get("archive")
    extra = Extra(
        latency_count=_count(latency, "count") or 0 if latency else 0,
        percentiles=_read_percentiles(percentiles),
        localities=(
            _count(queue, "zone_local_msg_count") or 0,
            _count(queue, "region_local_msg_count") or 0,
            _count(queue, "global_msg_count") or 0,
        ),
        losses=_read_losses(queue),
        archive=_read_archive(archive) if archive else None,
        dead_letter_topic=_text(queue, "dead_letter_topic"),
    )
    return None if extra == NO_EXTRA else extra


def _read_losses(queue: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, value)
        for name, value in queue.items()
        if (name in _LOSS_WORDS or (name.startswith("dropped_") and name.endswith("_count")))
        and type(value) is int
        and 0 < value <= MAX_COUNT
    )


def _read_percentiles(items: Any) -> tuple[tuple[float, float], ...]:
    pairs = []
    for item in (items or ())[:100]:
        quantile, value = item["quantile"], item["value"]
        if not (0 <= quantile <= 1 and 0 <= value <= MAX_COUNT):
            raise BadStatsError("/stats has a percentile out of bounds")
        pairs.append((float(quantile), float(value)))
    return tuple(sorted(pairs))


def _read_archive(archive: dict[str, Any]) -> tuple[int, int, int, int]:
    return (
        _count(archive, "bytes") or 0,
        _count(archive, "message_count") or 0,
        _count(archive, "oldest_timestamp") or 0,
        _count(archive, "dropped_count") or 0,
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value[:200] if isinstance(value, str) else ""


def _count(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a queue of one node, per second; None where unknown."""

    in_: float | None = None
    out: float | None = None
    requeue: float | None = None
    timeout: float | None = None
    bytes_: float | None = None


NO_RATES: Final = Rates()


def find_rates(earlier: Sample | None, later: Sample, key: Key) -> Rates:
    """Return the rates of a queue between two samples of its node.

    A counter that fell is a restart, or a queue made anew: nothing is known then.
    """
    after = later.queues.get(key)
    if earlier is None or after is None or later.time <= earlier.time:
        return NO_RATES
    before = earlier.queues.get(key)
    if before is None or earlier.start_time_s != later.start_time_s:
        return NO_RATES
    elapsed_s = later.time - earlier.time
    if after[MESSAGE_COUNT] < before[MESSAGE_COUNT]:
        return NO_RATES
    return Rates(
        *(
            max(after[index] - before[index], 0) / elapsed_s
            for index in (MESSAGE_COUNT, FINISH_COUNT, REQUEUE_COUNT, TIMEOUT_COUNT, MESSAGE_BYTES)
        )
    )
