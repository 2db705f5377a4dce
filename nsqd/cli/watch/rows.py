"""Rows of `nsq top` and `nsq check`: the figures of each queue, and how they change."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nsqd.cli.cluster import Outcome
from nsqd.cli.figures import Figures

DEPTHS: Final = 12

# Of the oldest message of each channel, by topic and channel; one for each node.
Ages = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Key:
    """One queue: of a topic, if the channel is empty; of all nodes, if the node is empty."""

    topic: str
    channel: str = ""
    node: str = ""

    @property
    def name(self) -> str:
        """The queue as the commands call it."""
        return f"{self.topic}/{self.channel}" if self.channel else self.topic


@dataclass(slots=True)
class Row:
    """One queue at one moment; rates are None before there is a second moment."""

    key: Key
    figures: Figures
    in_per_s: float | None = None
    out_per_s: float | None = None
    oldest_s: float | None = None
    depths: Sequence[int] = ()

    @property
    def depth(self) -> int:
        """Messages that wait."""
        return self.figures.values["depth"]

    @property
    def is_growing(self) -> bool:
        """Whether more messages wait than a moment ago."""
        return len(self.depths) > 1 and self.depths[-1] > self.depths[-2]

    @property
    def is_alarming(self) -> bool:
        """Whether a channel grows that has no consumer."""
        is_unread = bool(self.key.channel) and not self.figures.values["client_count"]
        return is_unread and self.is_growing

    def as_object(self) -> dict[str, Any]:
        """Return the row for --json."""
        return {
            "topic": self.key.topic,
            "channel": self.key.channel,
            "nsqd": self.key.node,
            "in_per_s": None if self.in_per_s is None else round(self.in_per_s, 3),
            "out_per_s": None if self.out_per_s is None else round(self.out_per_s, 3),
            **self.figures.values,
            "oldest_s": self.oldest_s,
            "latency_ms": self.figures.latencies,
            "paused": self.figures.is_paused,
        }


@dataclass(slots=True)
class History:
    """The figures of the queues at one moment, and their rates since the one before."""

    is_by_node: bool = False
    _before: dict[Key, Figures] = field(default_factory=dict)
    _depths: dict[Key, deque[int]] = field(default_factory=dict)

    def update(self, outcomes: Sequence[Outcome], ages: Sequence[Ages], at: float) -> list[Row]:
        """Return the rows of this moment; queues that are gone are forgotten."""
        groups = self._group(outcomes)
        oldest = self._find_oldest(outcomes, ages)
        rows = []
        depths: dict[Key, deque[int]] = {}
        before: dict[Key, Figures] = {}
        for key, entries in groups.items():
            figures = Figures.add_up(key.name, entries, at)
            depths[key] = self._depths.get(key) or deque(maxlen=DEPTHS)
            depths[key].append(figures.values["depth"])
            row = Row(key, figures, oldest_s=oldest.get(key), depths=tuple(depths[key]))
            if key in self._before:
                rates = figures.rates(self._before[key])
                # The counters of a node that was started again begin at 0.
                row.in_per_s, row.out_per_s = (max(0.0, rate) for rate in rates)
            rows.append(row)
            before[key] = figures
        self._before, self._depths = before, depths
        return rows

    def _group(self, outcomes: Sequence[Outcome]) -> dict[Key, list[dict[str, Any]]]:
        groups: dict[Key, list[dict[str, Any]]] = {}
        for outcome in outcomes:
            if outcome.error is not None:
                continue
            node = outcome.server if self.is_by_node else ""
            for topic in outcome.answer.get("topics") or []:
                name = str(topic["topic_name"])
                groups.setdefault(Key(name, "", node), []).append(topic)
                for channel in topic.get("channels") or []:
                    key = Key(name, str(channel["channel_name"]), node)
                    groups.setdefault(key, []).append(channel)
        return groups

    def _find_oldest(self, outcomes: Sequence[Outcome], ages: Sequence[Ages]) -> dict[Key, float]:
        oldest: dict[Key, float] = {}
        for outcome, found in zip(outcomes, ages, strict=True):
            for (topic, channel), age_s in found.items():
                key = Key(topic, channel, outcome.server if self.is_by_node else "")
                oldest[key] = max(oldest.get(key, 0.0), age_s)
        return oldest
