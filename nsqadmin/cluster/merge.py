"""Merge: the figures of all nodes become one row for each topic and channel. Pure, without I/O.

`Merger` takes one node after the other, so that the caller can let others run in between, and makes
the rows at the end. A topic's row has its own depth and, added up, what its channels do.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from nsqadmin.cluster.figures import (
    BACKEND_DEPTH,
    CLIENTS,
    DEFERRED,
    DEPTH,
    DISK_BYTES,
    EXTRA,
    FINISH_COUNT,
    HAS_FINISH_COUNT,
    IN_FLIGHT,
    MESSAGE_BYTES,
    MESSAGE_COUNT,
    PAUSED,
    REQUEUE_COUNT,
    TIMEOUT_COUNT,
    Key,
    Sample,
    beside,
)

# The columns of /api/v2/queues. A row has those after the key.
COLUMNS: Final = (
    *("topic", "channel", "depth", "backend_depth", "in_flight", "deferred", "message_count"),
    *("in_rate", "out_rate", "out_estimated", "requeue_rate", "timeout_rate", "clients"),
    *("channels", "waiting", "nodes", "paused", "disk_bytes", "latency_ns", "dead_letter_topic"),
    "stale",
)
_INDEX: Final = {name: number - 2 for number, name in enumerate(COLUMNS)}
Row: TypeAlias = tuple[Any, ...]


def get(row: Row, column: str) -> Any:
    """Return a figure of a row by the name of its column."""
    return row[_INDEX[column]]


# The slots of a sum under way.
_DEPTH, _BACKEND, _FLIGHT, _DEFER, _MESSAGES, _CLIENTS, _NODES, _PAUSED = range(8)
_IN, _OUT, _REQUEUE, _TIMEOUT, _BYTES, _RATED, _ESTIMATED, _STALE = range(8, 16)
_DISK, _WORST, _DEAD = range(16, 19)
_EMPTY: Final[list[Any]] = [0] * 8 + [0.0] * 5 + [0, False, 0] + [None, None, None]


@dataclass(slots=True)
class Totals:
    """Figures of a node, or of the cluster."""

    topics: int = 0
    channels: int = 0
    clients: int = 0
    depth: int = 0  # of the topics' own queues
    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    # Per second; None until two samples are there.
    in_rate: float | None = None
    out_rate: float | None = None
    requeue_rate: float | None = None
    timeout_rate: float | None = None
    is_estimated: bool = False
    disk_bytes: int | None = None


@dataclass(slots=True)
class Merged:
    """The rows of a round."""

    rows: dict[Key, Row] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    # Bytes published per second, by topic.
    bytes_rates: dict[str, float | None] = field(default_factory=dict)
    channels: dict[str, list[str]] = field(default_factory=dict)


class Merger:
    """Add nodes, then `finish`."""

    def __init__(self) -> None:
        self._sums: dict[Key, list[Any]] = {}

    def add(self, sample: Sample, earlier: Sample | None, *, is_stale: bool) -> Totals:
        """Add a node; return its own totals.

        Args:
            earlier: the sample before, for the rates; None if there is none to compare with.
            is_stale: whether the node has not answered lately, so that nothing is known of rates.
        """
        sums = self._sums
        totals = Totals()
        before: Mapping[Key, tuple[Any, ...]] = {}
        per_s = 0.0
        if (
            earlier is not None
            and not is_stale
            and earlier.start_time_s == sample.start_time_s
            and sample.time > earlier.time
        ):
            before = earlier.queues
            per_s = 1.0 / (sample.time - earlier.time)
            totals.in_rate = totals.out_rate = 0.0
            totals.requeue_rate = totals.timeout_rate = 0.0
        for key, figures, past in beside(sample.queues, before):
            total = sums.get(key)
            if total is None:
                total = sums[key] = _EMPTY.copy()
            total[_DEPTH] += figures[DEPTH]
            total[_BACKEND] += figures[BACKEND_DEPTH]
            total[_MESSAGES] += figures[MESSAGE_COUNT]
            total[_NODES] += 1
            total[_PAUSED] += figures[PAUSED]
            total[_STALE] += is_stale
            totals.waiting += figures[DEPTH]
            if key[1]:
                _add_channel(total, totals, figures)
            else:
                totals.topics += 1
                totals.depth += figures[DEPTH]
            if figures[DISK_BYTES] >= 0 or figures[EXTRA] is not None:
                _add_rare(total, totals, figures)
            # A queue that was made anew has smaller counts: nothing is known of its rates yet.
            if past is not None and figures[MESSAGE_COUNT] >= past[MESSAGE_COUNT]:
                total[_RATED] += 1
                if past != figures:
                    _add_rates(total, totals, figures, past, per_s, is_topic=not key[1])
        return totals

    def finish(self) -> Merged:
        """Return the rows of all nodes that were added."""
        merged = Merged()
        for _ in self.finish_into(merged):
            pass
        return merged

    def finish_into(self, merged: Merged) -> Iterator[None]:
        """Make the rows, a topic in each step; all are there when the steps are over."""
        rows = merged.rows
        topics: dict[str, list[tuple[str, list[Any]]]] = {}
        for (topic, channel), total in self._sums.items():
            channels = topics.setdefault(topic, [])
            if channel:
                channels.append((channel, total))
        nothing = _EMPTY.copy()
        for topic in sorted(topics):
            channels = sorted(topics[topic])
            merged.channels[topic] = [name for name, _ in channels]
            own = self._sums.get((topic, ""), nothing)
            _add_topic(merged, topic, own, channels)
            for name, total in channels:
                rows[topic, name] = _channel_row(total)
            yield
        _sum_up(merged)


def _add_channel(total: list[Any], totals: Totals, figures: tuple[Any, ...]) -> None:
    total[_FLIGHT] += figures[IN_FLIGHT]
    total[_DEFER] += figures[DEFERRED]
    total[_CLIENTS] += figures[CLIENTS]
    totals.channels += 1
    totals.in_flight += figures[IN_FLIGHT]
    totals.deferred += figures[DEFERRED]
    totals.clients += figures[CLIENTS]
    if not figures[HAS_FINISH_COUNT]:
        total[_ESTIMATED] = totals.is_estimated = True


def _add_rare(total: list[Any], totals: Totals, figures: tuple[Any, ...]) -> None:
    """Add the figures that not every node has."""
    if figures[DISK_BYTES] >= 0:
        total[_DISK] = (total[_DISK] or 0) + figures[DISK_BYTES]
        totals.disk_bytes = (totals.disk_bytes or 0) + figures[DISK_BYTES]
    extra = figures[EXTRA]
    if extra is not None:
        worst_ns = extra.worst_ns
        if worst_ns is not None:
            total[_WORST] = max(total[_WORST] or 0.0, worst_ns)
        if extra.dead_letter_topic:
            total[_DEAD] = extra.dead_letter_topic


def _add_rates(
    total: list[Any],
    totals: Totals,
    figures: tuple[Any, ...],
    past: tuple[Any, ...],
    per_s: float,
    *,
    is_topic: bool,
) -> None:
    in_rate = (figures[MESSAGE_COUNT] - past[MESSAGE_COUNT]) * per_s
    total[_IN] += in_rate
    assert totals.in_rate is not None
    assert totals.out_rate is not None
    assert totals.requeue_rate is not None
    assert totals.timeout_rate is not None
    if is_topic:
        # Each of its channels counts the same messages again.
        totals.in_rate += in_rate
        total[_BYTES] += max(figures[MESSAGE_BYTES] - past[MESSAGE_BYTES], 0) * per_s
        return
    out = max(figures[FINISH_COUNT] - past[FINISH_COUNT], 0) * per_s
    requeue = max(figures[REQUEUE_COUNT] - past[REQUEUE_COUNT], 0) * per_s
    timeout = max(figures[TIMEOUT_COUNT] - past[TIMEOUT_COUNT], 0) * per_s
    total[_OUT] += out
    total[_REQUEUE] += requeue
    total[_TIMEOUT] += timeout
    totals.out_rate += out
    totals.requeue_rate += requeue
    totals.timeout_rate += timeout


def _rate(total: list[Any], index: int) -> float | None:
    return round(total[index], 2) if total[_RATED] else None


def _channel_row(total: list[Any]) -> Row:
    return (
        *(total[_DEPTH], total[_BACKEND], total[_FLIGHT], total[_DEFER], total[_MESSAGES]),
        *(_rate(total, _IN), _rate(total, _OUT), total[_ESTIMATED]),
        *(_rate(total, _REQUEUE), _rate(total, _TIMEOUT), total[_CLIENTS], 0, total[_DEPTH]),
        *(total[_NODES], total[_PAUSED], total[_DISK], total[_WORST], total[_DEAD]),
        total[_STALE],
    )


def _add_topic(
    merged: Merged, topic: str, own: list[Any], channels: Iterable[tuple[str, list[Any]]]
) -> None:
    sums = [total for _, total in channels]
    rated = [total for total in sums if total[_RATED]]

    def rate(index: int) -> float | None:
        return round(sum(total[index] for total in rated), 2) if rated or not sums else None

    disk = [total[_DISK] for total in (own, *sums) if total[_DISK] is not None]
    worst = [total[_WORST] for total in (own, *sums) if total[_WORST] is not None]
    merged.bytes_rates[topic] = _rate(own, _BYTES)
    merged.rows[topic, ""] = (
        *(own[_DEPTH], own[_BACKEND]),
        *(sum(total[_FLIGHT] for total in sums), sum(total[_DEFER] for total in sums)),
        *(own[_MESSAGES], _rate(own, _IN), rate(_OUT), any(total[_ESTIMATED] for total in sums)),
        *(rate(_REQUEUE), rate(_TIMEOUT), sum(total[_CLIENTS] for total in sums), len(sums)),
        own[_DEPTH] + sum(total[_DEPTH] for total in sums),
        *(own[_NODES], own[_PAUSED], sum(disk) if disk else None),
        *(max(worst) if worst else None, own[_DEAD], own[_STALE]),
    )


def _sum_up(merged: Merged) -> None:
    totals = merged.totals
    rates: dict[str, list[float]] = {"in_rate": [], "out_rate": []}
    rates |= {"requeue_rate": [], "timeout_rate": []}
    disk = []
    for (_, channel), row in merged.rows.items():
        if channel:
            continue
        totals.topics += 1
        totals.channels += get(row, "channels")
        totals.clients += get(row, "clients")
        totals.depth += get(row, "depth")
        totals.waiting += get(row, "waiting")
        totals.in_flight += get(row, "in_flight")
        totals.deferred += get(row, "deferred")
        totals.is_estimated |= get(row, "out_estimated")
        if get(row, "disk_bytes") is not None:
            disk.append(get(row, "disk_bytes"))
        for name, known in rates.items():
            if get(row, name) is not None:
                known.append(get(row, name))
    totals.disk_bytes = sum(disk) if disk else None
    for name, known in rates.items():
        setattr(totals, name, round(sum(known), 2) if known or not totals.topics else None)
