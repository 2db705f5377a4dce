"""The objects of /api/v2 for one topic, channel or node, made of a view. Pure.

`samples` are the figures to show by node: those of the view, or fresh ones.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nsqadmin.api.go_shapes import find_newest, merge_percentiles, parse_version
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
    NO_EXTRA,
    PAUSED,
    REQUEUE_COUNT,
    TIMEOUT_COUNT,
    Extra,
    Figures,
    Key,
    Sample,
    find_rates,
)
from nsqadmin.cluster.merge import COLUMNS, Merger, Row
from nsqadmin.cluster.view import Node, NodeStatus, View

Object = dict[str, Any]

_LOCALITIES: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


def show_row(key: Key, row: Row) -> Object:
    """Return a row of `queues` as an object."""
    return dict(zip(COLUMNS, (key[0], key[1] or None, *row), strict=True))


def show_topic(view: View, topic: str, samples: Mapping[str, Sample], now: float) -> Object:
    """Return a topic with its channels and the nodes that have it."""
    key = (topic, "")
    merged = view.merged
    fresh = _merge(view, samples, topic)
    row = fresh.get(key)
    shown = show_row(key, row) if row is not None else _empty_row(topic)
    del shown["channel"]
    nodes = _having(view, samples, key)
    figures = [samples[node.name].queues[key] for node in nodes]
    shown |= {
        "seq": view.seq,
        "time_ms": view.time_ms,
        "memory_depth": shown["depth"] - shown["backend_depth"],
        "message_bytes": sum(each[MESSAGE_BYTES] for each in figures),
        "bytes_rate": merged.bytes_rates.get(topic),
        "latency": _latency(figures),
        "archive": _archive(figures),
        "losses": _losses(figures),
        "channel_list": [
            _show_channel(fresh[topic, name], topic, name, nodes, samples)
            for name in sorted(name for each, name in fresh if each == topic and name)
        ],
        "node_list": [_show_topic_part(node, key, samples[node.name], now) for node in nodes],
        "lookupds": [
            {"address": str(state.address), "knows": topic in state.topics}
            for state in view.lookupds
            if state.error is None
        ],
    }
    return shown


def _show_channel(
    row: Row, topic: str, name: str, nodes: list[Node], samples: Mapping[str, Sample]
) -> Object:
    key = (topic, name)
    figures = _figures(nodes, samples, key)
    shown = show_row(key, row)
    return shown | {
        "memory_depth": shown["depth"] - shown["backend_depth"],
        "latency": _latency(figures),
        "losses": _losses(figures),
    }


def show_channel(view: View, key: Key, samples: Mapping[str, Sample], now: float) -> Object | None:
    """Return a channel with the nodes that have it; None if none does."""
    row = _merge(view, samples, key[0]).get(key)
    if row is None:
        return None
    nodes = _having(view, samples, key)
    figures = _figures(nodes, samples, key)
    localities = [_extra(each).localities for each in figures]
    return {
        **_show_channel(row, *key, nodes, samples),
        "seq": view.seq,
        "time_ms": view.time_ms,
        **{name: sum(each[index] for each in localities) for index, name in enumerate(_LOCALITIES)},
        "node_list": [_show_channel_part(node, key, samples[node.name], now) for node in nodes],
    }


def show_nodes(view: View, now: float) -> Iterator[Object]:
    """Give all nodes, in order of their names."""
    newest = find_newest(each.producer for each in view.nodes.values())
    for _, node in sorted(view.nodes.items()):
        yield show_node(view, node, newest, now)


def show_node(view: View, node: Node, newest: tuple[int, ...], now: float) -> Object:
    """Return a node as in the list of nodes.

    Args: newest: the highest version of the cluster.
    """
    sample, totals, producer = node.sample, node.totals, node.producer
    version = (sample.version if sample is not None else "") or producer.version
    start_s = 0 if sample is None else sample.start_time_s
    return {
        **_state(node, now),
        "hostname": producer.hostname,
        "broadcast_address": producer.broadcast_address,
        "tcp_port": producer.tcp_port,
        "http_port": producer.http_port,
        "version": version,
        "out_of_date": parse_version(version) < newest,
        "region": producer.region,
        "zone": producer.zone,
        "health": None if sample is None else sample.health,
        "start_ms": start_s * 1000 or None,
        "uptime_s": max(view.time_ms // 1000 - start_s, 0) if start_s else None,
        "topics": totals.topics,
        "channels": totals.channels,
        "clients": totals.clients,
        "waiting": totals.waiting,
        "in_flight": totals.in_flight,
        "deferred": totals.deferred,
        "in_rate": _round(totals.in_rate),
        "out_rate": _round(totals.out_rate),
        "out_estimated": totals.is_estimated,
        "disk_bytes": totals.disk_bytes,
        "disk_free_bytes": None if sample is None else sample.disk_free_bytes,
        "draining": sample is not None and sample.is_draining,
        "lookupds": sorted(map(str, producer.lookupds)),
        "tombstones": sorted(topic for topic, is_hidden in producer.topics.items() if is_hidden),
    }


def show_node_topics(node: Node, sample: Sample) -> list[Object]:
    """Return the topics of a node with their channels, as rows of this node alone."""
    merger = Merger()
    earlier = node.earlier if sample is node.sample else node.sample
    merger.add(sample, earlier, is_stale=False)
    merged = merger.finish()
    shown = []
    for topic, names in merged.channels.items():
        figures = sample.queues.get((topic, ""))
        shown.append(
            show_row((topic, ""), merged.rows[topic, ""])
            | {
                "message_bytes": 0 if figures is None else figures[MESSAGE_BYTES],
                "channel_list": [
                    show_row((topic, name), merged.rows[topic, name]) for name in names
                ],
            }
        )
    return shown


def _merge(view: View, samples: Mapping[str, Sample], topic: str) -> dict[Key, Row]:
    """Return the rows of one topic, of the figures that are to be shown."""
    names = ("", *view.merged.channels.get(topic, ()))
    merger = Merger()
    for name, sample in samples.items():
        node = view.nodes.get(name)
        if node is None:
            continue
        part = sample
        if sample is node.sample:
            # Of thousands of queues those that matter; a fresh sample has no others.
            queues = sample.queues
            part = dataclasses.replace(
                sample,
                queues={key: queues[key] for each in names if (key := (topic, each)) in queues},
            )
        is_stale = node.status is not NodeStatus.UP
        merger.add(part, _earlier(node, sample), is_stale=is_stale)
    return merger.finish().rows


def _having(view: View, samples: Mapping[str, Sample], key: Key) -> list[Node]:
    return [
        view.nodes[name]
        for name in sorted(samples)
        if name in view.nodes and key in samples[name].queues
    ]


def _figures(nodes: list[Node], samples: Mapping[str, Sample], key: Key) -> list[Figures]:
    found = (samples[node.name].queues.get(key) for node in nodes)
    return [figures for figures in found if figures is not None]


def _state(node: Node, now: float) -> Object:
    return {
        "node": node.name,
        "state": node.status.value,
        "age_ms": node.age_ms(now),
        "error": node.error,
        "extensions": None if node.extensions is None else sorted(node.extensions),
    }


def _show_topic_part(node: Node, key: Key, sample: Sample, now: float) -> Object:
    figures = sample.queues[key]
    rates = find_rates(_earlier(node, sample), sample, key)
    is_hidden = node.producer.topics.get(key[0], False)
    return {
        **_state(node, now),
        "depth": figures[DEPTH],
        "backend_depth": figures[BACKEND_DEPTH],
        "memory_depth": figures[DEPTH] - figures[BACKEND_DEPTH],
        "message_count": figures[MESSAGE_COUNT],
        "in_rate": _round(rates.in_),
        "paused": figures[PAUSED],
        "channels": sum(1 for topic, name in sample.queues if topic == key[0] and name),
        "disk_bytes": _known(figures[DISK_BYTES]),
        "tombstoned_s": 0 if is_hidden else None,
    }


def _show_channel_part(node: Node, key: Key, sample: Sample, now: float) -> Object:
    figures = sample.queues[key]
    extra = _extra(figures)
    rates = find_rates(_earlier(node, sample), sample, key)
    return {
        **_state(node, now),
        "depth": figures[DEPTH],
        "backend_depth": figures[BACKEND_DEPTH],
        "memory_depth": figures[DEPTH] - figures[BACKEND_DEPTH],
        "in_flight": figures[IN_FLIGHT],
        "deferred": figures[DEFERRED],
        "requeue_count": figures[REQUEUE_COUNT],
        "timeout_count": figures[TIMEOUT_COUNT],
        "message_count": figures[MESSAGE_COUNT],
        "finish_count": figures[FINISH_COUNT] if figures[HAS_FINISH_COUNT] else None,
        "clients": figures[CLIENTS],
        "paused": figures[PAUSED],
        "in_rate": _round(rates.in_),
        "out_rate": _round(rates.out),
        "latency_ns": extra.worst_ns,
        "disk_bytes": _known(figures[DISK_BYTES]),
        "losses": dict(extra.losses),
        **dict(zip(_LOCALITIES, extra.localities, strict=True)),
    }


def _earlier(node: Node, sample: Sample) -> Sample | None:
    return node.earlier if sample is node.sample else node.sample


def _extra(figures: Figures) -> Extra:
    extra: Extra = figures[EXTRA] or NO_EXTRA
    return extra


def _latency(figures: list[Figures]) -> Object:
    extras = [_extra(each) for each in figures]
    latencies = [
        {
            "count": extra.latency_count,
            "percentiles": [{"quantile": at, "value": value} for at, value in extra.percentiles],
        }
        for extra in extras
    ]
    return {
        "count": sum(extra.latency_count for extra in extras),
        "percentiles": merge_percentiles(latencies),
    }


def _archive(figures: list[Figures]) -> Object | None:
    archives = [archive for each in figures if (archive := _extra(each).archive) is not None]
    if not archives:
        return None
    oldest = [archive[2] for archive in archives if archive[2]]
    return {
        "bytes": sum(archive[0] for archive in archives),
        "message_count": sum(archive[1] for archive in archives),
        "oldest_ms": min(oldest) // 1_000_000 if oldest else None,
        "dropped_count": sum(archive[3] for archive in archives),
    }


def _losses(figures: list[Figures]) -> Object:
    sums: dict[str, int] = {}
    for each in figures:
        for name, count in _extra(each).losses:
            sums[name] = sums.get(name, 0) + count
    return sums


def _empty_row(topic: str) -> Object:
    """Return the row of a topic that only nsqlookupd knows."""
    merger = Merger()
    merger.add(
        Sample(0.0, queues={(topic, ""): (0,) * 10 + (False, True, -1, None)}), None, is_stale=False
    )
    shown = show_row((topic, ""), merger.finish().rows[topic, ""])
    return shown | {"nodes": 0, "in_rate": None}


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
