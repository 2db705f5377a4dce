"""Findings: the problems of the cluster right now, each with advice. Pure.

The worst come first. How long a finding has lasted is noted by its kind and names.
"""

from collections.abc import Iterator
from typing import Final

from nsqadmin.cluster.figures import Sample
from nsqadmin.cluster.merge import get
from nsqadmin.cluster.view import Finding, NodeStatus, View

MAX_FINDINGS: Final = 200
# Below this share of free space a disk is low; nodes report only the free bytes.
LOW_DISK_BYTES: Final = 1 << 30
_SEVERITIES: Final = {"error": 0, "warning": 1, "info": 2}
_NO_HOST_HINT: Final = (
    "Its --broadcast-address does not resolve from here: set it on that nsqd to a name or address"
    " that nsqadmin and the consumers can reach."
)


class Findings:
    """Find the problems of each round."""

    def __init__(self) -> None:
        # Since when each finding lasts, in ms of the wall clock.
        self._since_ms: dict[tuple[str, ...], int] = {}

    def update(self, view: View, *, lookupd_count: int) -> None:
        """Put the findings of a view into it."""
        since: dict[tuple[str, ...], int] = {}
        found: list[Finding] = []
        for finding in _find(view, lookupd_count):
            name = (finding.kind, finding.topic, finding.channel, finding.node, finding.lookupd)
            since[name] = self._since_ms.get(name, view.time_ms)
            found.append(_dated(finding, since[name]))
        self._since_ms = since
        found.sort(key=lambda each: (_SEVERITIES[each.severity], each.since_ms))
        view.findings = found[:MAX_FINDINGS]
        view.more_findings = len(found) - len(view.findings)


def _dated(finding: Finding, since_ms: int) -> Finding:
    return Finding(
        finding.severity,
        finding.kind,
        finding.text,
        finding.hint,
        finding.topic,
        finding.channel,
        finding.node,
        finding.lookupd,
        since_ms,
    )


def _find(view: View, lookupd_count: int) -> Iterator[Finding]:
    yield from _find_in_lookupds(view)
    yield from _find_in_nodes(view, lookupd_count)
    yield from _find_in_queues(view)
    if view.is_stretched:
        yield Finding(
            "info",
            "round_stretched",
            f"The figures are collected every {view.interval_ms / 1000:.0f} s only",
            "The cluster is so large that asking more often would take too much of a processor.",
        )


def _find_in_lookupds(view: View) -> Iterator[Finding]:
    failed = [state for state in view.lookupds if state.error is not None]
    if failed and len(failed) == len(view.lookupds):
        yield Finding(
            "error",
            "discovery_failed",
            "No nsqlookupd answers: the nodes of the last round are shown",
            "Consumers find no producers either. See that nsqlookupd runs and can be reached.",
        )
    for state in failed:
        yield Finding(
            "error",
            "lookupd_unreachable",
            f"nsqlookupd {state.address} does not answer: {state.error}",
            "See that it runs, and that its HTTP address can be reached from here.",
            lookupd=str(state.address),
        )


def _find_in_nodes(view: View, lookupd_count: int) -> Iterator[Finding]:
    answering = {state.address for state in view.lookupds if state.error is None}
    versions: dict[str, int] = {}
    for name, node in sorted(view.nodes.items()):
        if node.status is NodeStatus.GONE:
            yield Finding(
                "warning",
                "node_gone",
                f"{name} is not known to nsqlookupd any more",
                "It was stopped, or has lost its nsqlookupds. It is listed for ten minutes.",
                node=name,
            )
            continue
        if node.status is NodeStatus.STALE and view.has_round:
            hint = "See that nsqd runs, and that its HTTP address can be reached from here."
            if node.error == "no such host":
                hint = _NO_HOST_HINT
            text = f"{name} does not answer: {node.error}"
            yield Finding("error", "node_unreachable", text, hint, node=name)
        if node.sample is not None:
            version = node.sample.version
            versions[version] = versions.get(version, 0) + 1
            yield from _find_in_sample(name, node.sample)
        missing = answering - set(node.producer.lookupds)
        if missing and lookupd_count > 1:
            names = ", ".join(sorted(map(str, missing)))
            yield Finding(
                "warning",
                "unknown_to_lookupd",
                f"{name} is not registered with {names}",
                "Consumers that ask only there do not find it: check its --lookupd-tcp-address.",
                node=name,
            )
    if len(versions) > 1:
        counts = ", ".join(f"{count} run {version}" for version, count in sorted(versions.items()))
        hint = "Finish the upgrade, or expect that the nodes differ in what they can do."
        yield Finding("info", "versions_mixed", f"Nodes have different versions: {counts}", hint)


def _find_in_sample(name: str, sample: Sample) -> Iterator[Finding]:
    if sample.health and sample.health != "OK":
        yield Finding(
            "error",
            "node_unhealthy",
            f"{name} is not healthy: {sample.health}",
            "It refuses publishes until its disk takes writes again.",
            node=name,
        )
    if sample.is_draining:
        text = f"{name} is draining: it takes no publishes and will stop"
        yield Finding("info", "node_draining", text, "Nothing to do.", node=name)
    if sample.disk_free_bytes is not None and sample.disk_free_bytes < LOW_DISK_BYTES:
        text = f"{name} has {sample.disk_free_bytes >> 20} MiB of disk left"
        hint = "Consume or empty what waits, or delete channels that nobody reads."
        yield Finding("error", "disk_low", text, hint, node=name)


def _find_in_queues(view: View) -> Iterator[Finding]:
    for (topic, channel), row in view.merged.rows.items():
        depth = get(row, "depth")
        if 0 < get(row, "paused") < get(row, "nodes"):
            subject = f"{topic}/{channel}" if channel else topic
            yield Finding(
                "info",
                "paused_differs",
                f"{subject} is paused on {get(row, 'paused')} of {get(row, 'nodes')} nodes",
                "Pause or unpause it on all nodes, if that is not on purpose.",
                topic=topic,
                channel=channel,
            )
        if not depth:
            continue
        if not channel:
            if not get(row, "channels"):
                yield Finding(
                    "warning",
                    "no_channel",
                    f"{topic} has {depth:,} messages and no channel",
                    "They wait until a channel exists. Connect a consumer, or create a channel.",
                    topic=topic,
                )
        elif not get(row, "clients"):
            if get(row, "in_rate"):
                yield Finding(
                    "warning",
                    "no_consumer",
                    f"{topic}/{channel} grows: {depth:,} waiting, no consumer",
                    "Connect a consumer, or delete the channel if nobody needs it any more.",
                    topic=topic,
                    channel=channel,
                )
        elif _is_stuck(row):
            yield Finding(
                "warning",
                "consumers_not_ready",
                f"{topic}/{channel} has {get(row, 'clients')} consumers that take nothing:"
                f" {depth:,} waiting",
                "Their RDY is 0, or less than one per node: see their max_in_flight and backoff.",
                topic=topic,
                channel=channel,
            )


def _is_stuck(row: tuple[object, ...]) -> bool:
    """Whether consumers are connected and nothing moves, in flight neither."""
    return bool(
        get(row, "paused") < get(row, "nodes")
        and not get(row, "in_flight")
        and get(row, "out_rate") == 0
    )
