"""The figures of topics and channels in /stats, added up over the nodes that answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nsqd.cli.cluster import Outcome

_COLUMNS: Final = (
    "depth", "backend_depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count",
    "message_count", "client_count",
)  # fmt: skip


def read_topics(stats: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the topics of all nodes that answered, as /stats has them."""
    return [
        topic
        for outcome in stats
        if outcome.error is None
        for topic in outcome.answer.get("topics") or []
    ]


def sum_topics(stats: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return the rows of `nsq topic ls`, by name."""
    sums: dict[str, dict[str, Any]] = {}
    for entry in read_topics(stats):
        name = str(entry["topic_name"])
        counts = dict.fromkeys(("depth", "messages", "channels", "clients"), 0)
        row = sums.setdefault(name, {"topic": name, **counts, "paused": False})
        channels = entry.get("channels") or []
        row["depth"] += entry["depth"] + sum(channel["depth"] for channel in channels)
        row["messages"] += entry["message_count"]
        row["channels"] = max(row["channels"], len(channels))
        row["clients"] += sum(channel.get("client_count", 0) for channel in channels)
        row["paused"] = row["paused"] or bool(entry["paused"])
    return sums


def sum_channels(stats: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return the rows of `nsq channel ls`, by TOPIC/CHANNEL."""
    sums: dict[str, dict[str, Any]] = {}
    names = ("depth", "in_flight", "deferred", "messages", "clients")
    for entry in read_topics(stats):
        for channel in entry.get("channels") or []:
            topic, name = str(entry["topic_name"]), str(channel["channel_name"])
            counts = dict.fromkeys(names, 0)
            first = {"topic": topic, "channel": name, **counts, "paused": False}
            row = sums.setdefault(f"{topic}/{name}", first)
            row["depth"] += channel["depth"]
            row["in_flight"] += channel["in_flight_count"]
            row["deferred"] += channel["deferred_count"]
            row["messages"] += channel["message_count"]
            row["clients"] += channel.get("client_count", 0)
            row["paused"] = row["paused"] or bool(channel["paused"])
    return sums


@dataclass(slots=True)
class Figures:
    """The sums of one channel, or of the topic itself, over all nodes."""

    name: str
    at: float
    values: dict[str, int]
    is_paused: bool = False
    # From publish to FIN, in ms by quantile, where nsqd measures it; the worst of the nodes.
    latencies: dict[str, float] = field(default_factory=dict)

    @classmethod
    def add_up(cls, name: str, entries: Iterable[dict[str, Any]], at: float) -> Figures:
        """Sum the entries of /stats."""
        found = list(entries)
        values = {key: sum(int(entry.get(key, 0)) for entry in found) for key in _COLUMNS}
        is_paused = any(entry.get("paused") for entry in found)
        return cls(name, at, values, is_paused, _worst_latencies(found))

    def rates(self, before: Figures) -> tuple[float, float]:
        """Return messages in and out per second, by the time that really passed."""
        passed_s = max(self.at - before.at, 1e-9)
        came = self.values["message_count"] - before.values["message_count"]
        grown = self.values["depth"] - before.values["depth"]
        return came / passed_s, (came - grown) / passed_s


def _worst_latencies(entries: Iterable[dict[str, Any]]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for entry in entries:
        measured = entry.get("e2e_processing_latency") or {}
        for each in measured.get("percentiles") or []:
            name = f"p{float(each['quantile']) * 100:g}"
            worst[name] = max(worst.get(name, 0.0), round(float(each["value"]) / 1e6, 3))
    return worst


def read_figures(
    outcomes: Sequence[Outcome], topic: str, channel: str | None, at: float
) -> list[Figures]:
    """Return the figures of the channels, or of one, and of the topic if there is no channel."""
    topics = [
        entry
        for outcome in outcomes
        if outcome.error is None
        for entry in outcome.answer.get("topics") or []
        if entry["topic_name"] == topic
    ]
    channels: dict[str, list[dict[str, Any]]] = {}
    for entry in topics:
        for each in entry.get("channels") or []:
            channels.setdefault(str(each["channel_name"]), []).append(each)
    if channel is not None:
        return [Figures.add_up(channel, channels[channel], at)] if channel in channels else []
    rows = [Figures.add_up(name, channels[name], at) for name in sorted(channels)]
    return [Figures.add_up("", topics, at), *rows] if topics else []
