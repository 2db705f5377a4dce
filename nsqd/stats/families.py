"""Families: the metrics that each topic and each channel has, and where their figures come from.

Prometheus shows the help texts; docs and dashboards rely on the names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, attrgetter
from typing import TypeAlias

from nsqd.broker.limits.queue_bounds import DropReason
from nsqd.config.kinds import DURATION
from nsqd.config.limits import LIMITS, Limit
from nsqd.stats.snapshot import ChannelStats, TopicStats

# Makes one value of those of two topics or channels that share a row.
Merge: TypeAlias = Callable[[float, float], float]
# Reads one figure of a TopicStats or of a ChannelStats, as the family belongs to one or the other.
Read: TypeAlias = Callable[..., float]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with one or more samples per topic or channel."""

    name: str  # without the _total of counters
    kind: str
    help_text: str
    # Further labels, each with its comma in front, and the figure.
    samples: tuple[tuple[str, Read], ...]
    merge: Merge = add

    @property
    def sample_name(self) -> str:
        """The name on the lines of the samples."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _gauge(name: str, help_text: str, read: Read) -> Family:
    return Family(name, "gauge", help_text, (("", read),))


def _counter(name: str, help_text: str, read: Read) -> Family:
    return Family(name, "counter", help_text, (("", read),))


def _smallest(one: float, other: float) -> float:
    """Return the smaller one that is not 0."""
    return min(one or other, other or one)


def _limit_family(limit: Limit) -> Family:
    """Make the gauge of a limit: of topics that share a row it shows the strictest; 0 is none."""
    return Family(
        f"nsqd_topic_{limit.gauge}",
        "gauge",
        limit.flag.gauge_help or "",
        (("", lambda topic: limit.read(topic.limits)),),
        merge=_smallest,
    )


def _is_paused(stats: TopicStats | ChannelStats) -> int:
    return int(stats.is_paused)


def _memory_depth(stats: TopicStats | ChannelStats) -> int:
    return stats.depth - stats.backend_depth


def _client_count(channel: ChannelStats) -> int:
    return len(channel.consumers)


def _drop_count(reason: DropReason) -> Callable[[TopicStats | ChannelStats], int]:
    return lambda stats: stats.losses.dropped_counts[reason]


def _archive(field: str) -> Callable[[TopicStats], int]:
    """Read a figure of the history; 0 for a topic without one, as ephemeral topics are."""
    return lambda topic: getattr(topic.archive, field, 0)


_BY_STORE = ((',store="memory"', _memory_depth), (',store="disk"', attrgetter("backend_depth")))
_BY_REASON = tuple((f',reason="{reason.value}"', _drop_count(reason)) for reason in DropReason)
_disk_bytes = attrgetter("disk.size_bytes")
_segment_count = attrgetter("disk.segment_count")
_dead_lettered_count = attrgetter("losses.dead_lettered_count")
_rejected_count = attrgetter("losses.rejected_count")

# Counts come before durations.
_LIMIT_FAMILIES = tuple(
    _limit_family(limit)
    for limit in sorted(LIMITS, key=lambda limit: limit.kind is DURATION)
    if limit.gauge is not None
)

TOPIC_FAMILIES: tuple[Family, ...] = (
    Family("nsqd_topic_depth", "gauge", "Messages that no channel has taken yet.", _BY_STORE),
    _counter("nsqd_topic_messages", "Messages published.", attrgetter("message_count")),
    _counter(
        *("nsqd_topic_message_bytes", "Bytes of the bodies published."),
        attrgetter("message_bytes"),
    ),
    _gauge("nsqd_topic_paused", "Whether the topic is paused.", _is_paused),
    _gauge("nsqd_topic_disk_bytes", "Bytes of the topic's own files.", _disk_bytes),
    _gauge("nsqd_topic_disk_segments", "Number of the topic's own files.", _segment_count),
    _counter("nsqd_topic_rejected", "Messages refused because a queue was full.", _rejected_count),
    Family(
        *("nsqd_topic_dropped", "counter"),
        "Messages dropped because of a limit before any channel took them.",
        _BY_REASON,
    ),
    _counter(
        *("nsqd_topic_dead_lettered", "Messages dead-lettered before that."),
        _dead_lettered_count,
    ),
    *_LIMIT_FAMILIES,
)

# Shown only if history is kept.
ARCHIVE_FAMILIES = (
    _gauge(
        *("nsqd_topic_archive_bytes", "Bytes of the topic's history on disk."),
        _archive("size_bytes"),
    ),
    _gauge(
        *("nsqd_topic_archive_segments", "Number of the files of the topic's history."),
        _archive("segment_count"),
    ),
    _gauge(
        *("nsqd_topic_archive_messages", "Messages in the topic's history."),
        _archive("message_count"),
    ),
    _counter(
        *("nsqd_topic_archive_dropped", "Messages that the history lacks."),
        _archive("dropped_count"),
    ),
    Family(
        *("nsqd_topic_archive_oldest_timestamp_seconds", "gauge"),
        "When the oldest message of the topic's history was published; 0 if there is none.",
        (("", lambda topic: _archive("oldest_ns")(topic) // 10**9),),
        merge=_smallest,
    ),
)

CHANNEL_FAMILIES: tuple[Family, ...] = (
    Family("nsqd_channel_depth", "gauge", "Messages that wait for a consumer.", _BY_STORE),
    Family(
        *("nsqd_channel_oldest_message_age_seconds", "gauge"),
        "Age of the oldest message that is due: the next to be delivered, or one in flight.",
        (("", attrgetter("oldest_age_s")),),
        merge=max,
    ),
    _gauge(
        *("nsqd_channel_in_flight", "Messages delivered and not answered."),
        attrgetter("in_flight_count"),
    ),
    _gauge(
        *("nsqd_channel_deferred", "Messages kept back until they are due."),
        attrgetter("deferred_count"),
    ),
    _counter(
        *("nsqd_channel_messages", "Messages that have come from the topic."),
        attrgetter("message_count"),
    ),
    _counter("nsqd_channel_finished", "Messages finished by a FIN.", attrgetter("finish_count")),
    _counter("nsqd_channel_requeued", "Messages put back by a REQ.", attrgetter("requeue_count")),
    _counter(
        *("nsqd_channel_timed_out", "Messages put back by a timeout."),
        attrgetter("timeout_count"),
    ),
    _gauge("nsqd_channel_clients", "Subscribed clients.", _client_count),
    _gauge("nsqd_channel_paused", "Whether the channel is paused.", _is_paused),
    _gauge("nsqd_channel_disk_bytes", "Bytes of the channel's files.", _disk_bytes),
    _gauge("nsqd_channel_disk_segments", "Number of the channel's files.", _segment_count),
    Family("nsqd_channel_dropped", "counter", "Messages dropped because of a limit.", _BY_REASON),
    _counter(
        *("nsqd_channel_dead_lettered", "Messages moved to the dead-letter topic."),
        _dead_lettered_count,
    ),
)
