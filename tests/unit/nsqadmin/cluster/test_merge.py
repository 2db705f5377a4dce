from typing import Any

from nsqadmin.cluster.figures import Extra, Sample
from nsqadmin.cluster.merge import COLUMNS, Merged, Merger, get

TOPIC, CHANNEL = ("t", ""), ("t", "c")


def topic(depth: int = 0, messages: int = 0, *, paused: bool = False, bytes_: int = 0) -> Any:
    return (depth, 0, 0, 0, messages, 0, 0, 0, bytes_, 0, paused, True, -1, None)


def channel(
    depth: int = 0,
    messages: int = 0,
    finished: int = 0,
    *,
    clients: int = 0,
    told: bool = True,
    disk: int = -1,
    extra: Extra | None = None,
) -> Any:
    return (depth, 1, 2, 3, messages, 0, 0, clients, 0, finished, False, told, disk, extra)


def sample(time: float, queues: dict[Any, Any], start: int = 1) -> Sample:
    return Sample(time, start_time_s=start, queues=queues)


def merge(*nodes: tuple[Sample, Sample | None, bool]) -> Merged:
    merger = Merger()
    for each, earlier, is_stale in nodes:
        merger.add(each, earlier, is_stale=is_stale)
    return merger.finish()


def show(merged: Merged, key: tuple[str, str]) -> dict[str, Any]:
    return dict(zip(COLUMNS[2:], merged.rows[key], strict=True))


def test_depths_of_all_nodes_are_added_and_a_topic_waits_with_its_channels() -> None:
    one = sample(1.0, {TOPIC: topic(4, 9), CHANNEL: channel(10, 9, clients=2)})
    two = sample(1.0, {TOPIC: topic(1, 5, paused=True), CHANNEL: channel(20, 5, clients=1)})

    merged = merge((one, None, False), (two, None, False))

    row = show(merged, TOPIC)
    assert (row["depth"], row["waiting"], row["message_count"]) == (5, 35, 14)
    assert (row["in_flight"], row["deferred"], row["clients"], row["channels"]) == (4, 6, 3, 1)
    assert (row["nodes"], row["paused"], row["stale"]) == (2, 1, 0)
    assert show(merged, CHANNEL)["waiting"] == 30
    assert merged.channels == {"t": ["c"]}
    assert (merged.totals.waiting, merged.totals.depth, merged.totals.clients) == (35, 5, 3)


def test_rates_are_sums_of_what_each_node_did() -> None:
    before = {TOPIC: topic(0, 100, bytes_=1000), CHANNEL: channel(0, 100, 50)}
    after = {TOPIC: topic(0, 120, bytes_=1500), CHANNEL: channel(0, 120, 80)}
    node = (sample(5.0, after), sample(1.0, before), False)

    merged = merge(node, node)

    row = show(merged, TOPIC)
    assert (row["in_rate"], row["out_rate"], row["requeue_rate"]) == (10.0, 15.0, 0.0)
    assert merged.bytes_rates == {"t": 250.0}
    assert show(merged, CHANNEL)["in_rate"] == 10.0
    assert (merged.totals.in_rate, merged.totals.out_rate) == (10.0, 15.0)


def test_a_restart_gives_a_gap_and_never_a_negative_rate() -> None:
    before = sample(1.0, {TOPIC: topic(0, 100), CHANNEL: channel(0, 100, 50)})
    restarted = sample(5.0, {TOPIC: topic(0, 900), CHANNEL: channel(0, 900, 900)}, start=2)
    made_anew = sample(5.0, {TOPIC: topic(0, 10), CHANNEL: channel(0, 10, 10)})

    for later in (restarted, made_anew):
        row = show(merge((later, before, False)), TOPIC)
        assert (row["in_rate"], row["out_rate"]) == (None, None)


def test_a_stale_node_counts_with_its_last_figures_and_without_rates() -> None:
    figures = {TOPIC: topic(3, 10), CHANNEL: channel(0, 10)}
    merged = merge((sample(5.0, figures), sample(1.0, figures), True))

    row = show(merged, TOPIC)
    assert (row["depth"], row["stale"], row["in_rate"]) == (3, 1, None)


def test_out_is_an_estimate_if_one_node_does_not_tell() -> None:
    ours = sample(1.0, {TOPIC: topic(), CHANNEL: channel(told=True, disk=100)})
    gos = sample(1.0, {TOPIC: topic(), CHANNEL: channel(told=False)})

    assert show(merge((ours, None, False)), TOPIC)["out_estimated"] is False
    merged = merge((ours, None, False), (gos, None, False))
    assert show(merged, TOPIC)["out_estimated"] is True
    assert show(merged, CHANNEL)["disk_bytes"] == 100
    assert merged.totals.is_estimated


def test_the_worst_node_gives_the_latency() -> None:
    fast = Extra(latency_count=1, percentiles=((0.5, 1.0), (0.99, 5.0)))
    slow = Extra(latency_count=1, percentiles=((0.99, 70.0),), dead_letter_topic="t.dead")
    one = sample(1.0, {TOPIC: topic(), CHANNEL: channel(extra=fast)})
    two = sample(1.0, {TOPIC: topic(), CHANNEL: channel(extra=slow)})

    row = merge((one, None, False), (two, None, False)).rows[CHANNEL]

    assert get(row, "latency_ns") == 70.0
    assert get(row, "dead_letter_topic") == "t.dead"


def test_the_totals_of_a_node_are_its_own() -> None:
    figures = {TOPIC: topic(3, 10), CHANNEL: channel(4, 10, clients=2, disk=7)}

    totals = Merger().add(sample(1.0, figures), None, is_stale=False)

    assert (totals.topics, totals.channels, totals.waiting, totals.clients) == (1, 1, 7, 2)
    assert (totals.in_rate, totals.disk_bytes) == (None, 7)
