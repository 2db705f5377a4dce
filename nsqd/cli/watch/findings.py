"""The rules of `nsq doctor`: from the figures of a cluster to its problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

from nsqd.cli.cluster import Outcome, read_producers
from nsqd.cli.output import plural, show_bytes

_MAX_SKEW_S: Final = 5.0
_MIN_FREE_BYTES: Final = 1 << 30
_MIN_CERTIFICATE_DAYS: Final = 30.0
_FREE: Final = re.compile(r"^nsqd_disk_free_bytes (\S+)$", re.MULTILINE)
_SYNC_FAILURES: Final = re.compile(r"^nsqd_sync_failures_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and a command that may mend it."""

    level: str  # problem or note
    where: str
    text: str
    fix: str = ""


@dataclass(slots=True)
class Facts:
    """The figures of a cluster; the lists about nodes are in the order of `stats`."""

    now_s: float = 0.0
    lookupds: Sequence[Outcome] = ()  # of GET /nodes
    stats: Sequence[Outcome] = ()
    later: Sequence[Outcome] = ()  # the same, a moment later
    metrics: Sequence[Outcome] = ()
    tcp_errors: Mapping[str, str] = field(default_factory=dict)  # by node
    certificate_days: Mapping[str, float] = field(default_factory=dict)  # by node


def find_all(facts: Facts) -> list[Finding]:
    """Return everything that is wrong, problems first."""
    rules = (_reach, _agree, _clocks, _versions, _health, _certificates, _queues, _timeouts)
    found = [finding for rule in rules for finding in rule(facts)]
    return sorted(found, key=lambda each: each.level != "problem")


def _reach(facts: Facts) -> Iterator[Finding]:
    """Servers that do not answer, and addresses that lead nowhere."""
    for outcome in (*facts.lookupds, *facts.stats):
        if outcome.error is not None:
            yield Finding("problem", outcome.server, f"does not answer: {outcome.error}")
    for node, error in facts.tcp_errors.items():
        text = f"its TCP address cannot be reached from here: {error}"
        yield Finding("problem", node, text, "nsqd --broadcast-address=NAME that clients resolve")


def _agree(facts: Facts) -> Iterator[Finding]:
    """Nodes that some nsqlookupds know and others do not, and topics that are tombstoned."""
    known = {
        outcome.server: {str(node) for node in read_producers(outcome.answer)}
        for outcome in facts.lookupds
        if outcome.error is None
    }
    every: set[str] = set().union(*known.values()) if known else set()
    for server, nodes in known.items():
        missing = sorted(every - nodes)
        if missing:
            fix = f"nsq config set nsqlookupd_tcp_addresses ADDRESS,... -a {missing[0]}"
            yield Finding("problem", server, f"does not know {', '.join(missing)}", fix)
    for outcome in facts.lookupds:
        for entry in _producer_entries(outcome):
            dead = [
                topic
                for topic, is_dead in zip(
                    entry.get("topics") or [], entry.get("tombstones") or [], strict=False
                )
                if is_dead
            ]
            if dead:
                name = f"{entry.get('broadcast_address')}:{entry.get('http_port')}"
                yield Finding("note", name, f"tombstoned for {', '.join(map(str, dead))}")


def _producer_entries(outcome: Outcome) -> list[dict[str, Any]]:
    if outcome.error is not None or not isinstance(outcome.answer, dict):
        return []
    entries = outcome.answer.get("producers") or []
    return [entry for entry in entries if isinstance(entry, dict)]


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Clocks that differ from the one here."""
    for outcome in (*facts.lookupds, *facts.stats):
        try:
            skew_s = parsedate_to_datetime(outcome.date).timestamp() - facts.now_s
        except (ValueError, TypeError):
            continue
        if abs(skew_s) > _MAX_SKEW_S:
            side = "ahead" if skew_s > 0 else "behind"
            text = f"its clock is {abs(skew_s):.0f} s {side}"
            yield Finding("problem", outcome.server, text, "timedatectl set-ntp true")


def _versions(facts: Facts) -> Iterator[Finding]:
    by_version: dict[str, list[str]] = {}
    for outcome in facts.stats:
        if outcome.error is None:
            by_version.setdefault(str(outcome.answer.get("version")), []).append(outcome.server)
    if len(by_version) > 1:
        text = "; ".join(f"{version}: {', '.join(nodes)}" for version, nodes in by_version.items())
        yield Finding("note", "versions", f"the nodes differ: {text}")


def _health(facts: Facts) -> Iterator[Finding]:
    for outcome in facts.stats:
        if outcome.error is None and outcome.answer.get("health", "OK") != "OK":
            yield Finding("problem", outcome.server, str(outcome.answer["health"]))
    for outcome in facts.metrics:
        if outcome.error is not None or not isinstance(outcome.answer, str):
            continue
        free = _FREE.search(outcome.answer)
        if free is not None and float(free[1]) < _MIN_FREE_BYTES:
            text = f"{show_bytes(round(float(free[1])))} of its disk are free"
            yield Finding("problem", outcome.server, text, "nsq top --sort depth")
        failures = _SYNC_FAILURES.search(outcome.answer)
        if failures is not None and float(failures[1]):
            text = f"{float(failures[1]):.0f} syncs to disk have failed"
            yield Finding("problem", outcome.server, text)


def _certificates(facts: Facts) -> Iterator[Finding]:
    for node, days in facts.certificate_days.items():
        if days < _MIN_CERTIFICATE_DAYS:
            when = f"ends in {days:.0f} days" if days > 0 else "has ended"
            yield Finding("problem", node, f"its certificate {when}")


def _queues(facts: Facts) -> Iterator[Finding]:
    """Messages without a consumer, and those that are held back."""
    for topic, channel, entry in _each_queue(facts.stats):
        name = f"{topic}/{channel}" if channel else topic
        depth = int(entry["depth"])
        if entry.get("paused") and depth:
            kind = "channel" if channel else "topic"
            text = f"{plural(depth, 'message')} and it is paused"
            yield Finding("note", name, text, f"nsq {kind} unpause {name}")
        elif channel and depth and not entry.get("client_count"):
            text = f"{plural(depth, 'message')} and no consumer"
            fix = f"nsq peek {name}; nsq channel delete {name}"
            yield Finding("problem", name, text, fix)
        elif not channel and depth and not entry.get("channels"):
            text = f"{plural(depth, 'message')} and no channel"
            yield Finding("problem", name, text, f"nsq channel create {name}/CHANNEL")


def _timeouts(facts: Facts) -> Iterator[Finding]:
    before = {
        (topic, channel): int(entry.get("timeout_count", 0))
        for topic, channel, entry in _each_queue(facts.stats)
        if channel
    }
    for topic, channel, entry in _each_queue(facts.later):
        rise = int(entry.get("timeout_count", 0)) - before.get((topic, channel), 0)
        if channel and (topic, channel) in before and rise > 0:
            text = f"{plural(rise, 'message')} timed out while we looked: consumers are too slow"
            fix = f"nsq client ls --topic {topic} --channel {channel}"
            yield Finding("problem", f"{topic}/{channel}", text, fix)


def _each_queue(stats: Sequence[Outcome]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the queues of all nodes, added up; the channel is empty for a topic's own."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for outcome in stats:
        if outcome.error is not None:
            continue
        for topic in outcome.answer.get("topics") or []:
            name = str(topic["topic_name"])
            _add(sums.setdefault((name, ""), {}), topic)
            for channel in topic.get("channels") or []:
                _add(sums.setdefault((name, str(channel["channel_name"])), {}), channel)
    for (topic_name, channel_name), entry in sums.items():
        yield topic_name, channel_name, entry


def _add(total: dict[str, Any], entry: Mapping[str, Any]) -> None:
    for key in ("depth", "client_count", "timeout_count"):
        total[key] = total.get(key, 0) + int(entry.get(key) or 0)
    total["paused"] = bool(total.get("paused") or entry.get("paused"))
    total["channels"] = bool(total.get("channels") or entry.get("channels"))
