import copy
import tracemalloc
from typing import Any

import pytest

from nsqadmin.cluster.figures import (
    CLIENTS,
    DEPTH,
    DISK_BYTES,
    EXTRA,
    FINISH_COUNT,
    HAS_FINISH_COUNT,
    MESSAGE_COUNT,
    NO_RATES,
    BadStatsError,
    KeyTable,
    Rates,
    Sample,
    beside,
    find_rates,
    read_delta,
    read_sample,
)

LATENCY = {"count": 0, "percentiles": None}
CHANNEL: dict[str, Any] = {
    "channel_name": "mail",
    "depth": 5,
    "backend_depth": 2,
    "in_flight_count": 3,
    "deferred_count": 1,
    "message_count": 20,
    "requeue_count": 4,
    "timeout_count": 2,
    "client_count": 7,
    "clients": None,
    "paused": False,
    "e2e_processing_latency": LATENCY,
}
TOPIC: dict[str, Any] = {
    "topic_name": "orders",
    "channels": [CHANNEL],
    "depth": 0,
    "backend_depth": 0,
    "message_count": 20,
    "message_bytes": 400,
    "paused": True,
    "e2e_processing_latency": LATENCY,
}
KEY, CHANNEL_KEY = ("orders", ""), ("orders", "mail")


def make_document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(
        {"version": "1.3.0", "health": "OK", "start_time": 7, "topics": [TOPIC]}
    )
    document["topics"][0]["channels"][0] |= changes
    return document


def read(document: object, time: float = 1.0, earlier: Sample | None = None) -> Sample:
    return read_sample(document, time, KeyTable(), earlier)


def test_a_go_node_is_read_without_extras() -> None:
    sample = read(make_document())

    channel = sample.queues[CHANNEL_KEY]
    assert (sample.version, sample.health, sample.start_time_s) == ("1.3.0", "OK", 7)
    assert sample.topics() == ["orders"]
    assert channel[:10] == (5, 2, 3, 1, 20, 4, 2, 7, 0, 11)  # 20 - 5 - 3 - 1 were finished
    assert channel[HAS_FINISH_COUNT] is False
    assert channel[DISK_BYTES] == -1
    assert channel[EXTRA] is None
    assert sample.queues[KEY][MESSAGE_COUNT] == 20


def test_what_only_our_nodes_tell() -> None:
    percentiles = [{"quantile": 0.99, "value": 9e6}, {"quantile": 0.5, "value": 1e6}]
    sample = read(
        make_document(
            finish_count=10,
            disk_bytes=900,
            dropped_expired_count=3,
            dead_lettered_count=2,
            zone_local_msg_count=6,
            e2e_processing_latency={"count": 4, "percentiles": percentiles},
        )
    )

    channel = sample.queues[CHANNEL_KEY]
    extra = channel[EXTRA]
    assert (channel[FINISH_COUNT], channel[HAS_FINISH_COUNT], channel[DISK_BYTES]) == (
        10,
        True,
        900,
    )
    assert dict(extra.losses) == {"dropped_expired_count": 3, "dead_lettered_count": 2}
    assert extra.worst_ns == 9e6
    assert extra.localities == (6, 0, 0)


def test_queues_stand_beside_what_they_were() -> None:
    first = read(make_document())
    second = read(make_document(depth=6), 2.0, first)
    document = make_document()
    document["topics"].append(TOPIC | {"topic_name": "mail", "channels": None})
    third = read(document, 3.0, second)

    def depths(later: Sample, earlier: Sample) -> list[Any]:
        return [
            (key, now[DEPTH], past and past[DEPTH])
            for key, now, past in beside(later.queues, earlier.queues)
        ]

    assert depths(second, first) == [(KEY, 0, 0), (CHANNEL_KEY, 6, 5)]
    assert depths(third, second) == [(KEY, 0, 0), (CHANNEL_KEY, 5, 6), (("mail", ""), 0, None)]
    assert dict(third.queues.items()) == {key: third.queues[key] for key in third.queues}


def test_samples_of_a_large_node_take_little_memory() -> None:
    def document(count: int) -> dict[str, Any]:
        topics = [TOPIC | {"topic_name": f"t{number}"} for number in range(1000)]
        return {"topics": copy.deepcopy(topics), "start_time": count}

    keys = KeyTable()
    warm = read_sample(document(0), 1.0, keys)
    documents = [document(number) for number in range(10)]
    tracemalloc.start()
    sample, samples = warm, []
    for number, each in enumerate(documents):
        for topic in each["topics"]:
            topic["message_count"] += number
        sample = read_sample(each, 2.0 + number, keys, sample)
        samples.append(sample)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert taken / len(samples) / len(warm.queues) < 100  # bytes for each queue


def test_a_queue_that_is_there_twice_is_refused() -> None:
    document = make_document()
    document["topics"].append(TOPIC)

    with pytest.raises(BadStatsError, match="twice: orders"):
        read(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": -1},
        {"message_count": 2**63},
        {"message_count": 1e300},
        {"client_count": "7"},
        {"requeue_count": None},
        {"requeue_count": []},
        {"channel_name": "a/b"},
        {"channel_name": "<script>"},
        {"e2e_processing_latency": 5},
        {"e2e_processing_latency": {"count": 1, "percentiles": [{"quantile": 2, "value": 1}]}},
        {"e2e_processing_latency": {"count": 1, "percentiles": [7]}},
        {"disk_bytes": "x"},
        {"disk_bytes": 2**63},
        {"finish_count": -5},
    ],
)
def test_a_node_that_lies_is_refused_with_a_reason(changes: dict[str, Any]) -> None:
    with pytest.raises(BadStatsError):
        read(make_document(**changes))


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "x",
        {"topics": 5},
        {"topics": [5]},
        {"topics": [{}]},
        {"topics": [{"topic_name": 1}]},
    ],
)
def test_what_is_no_stats_at_all_is_refused(document: object) -> None:
    with pytest.raises(BadStatsError):
        read(document)


def test_a_node_without_topics() -> None:
    assert read({"version": "1.3.0", "topics": None}).queues == {}


class TestRates:
    def test_differences_over_the_time_between(self) -> None:
        first = read(make_document())
        second = read(
            make_document(message_count=40, depth=5, requeue_count=6, timeout_count=2), 3.0, first
        )

        assert find_rates(first, second, CHANNEL_KEY) == Rates(10.0, 10.0, 1.0, 0.0, 0.0)

    def test_a_counter_that_fell_is_a_gap(self) -> None:
        first, second = read(make_document()), read(make_document(message_count=10), 3.0)

        assert find_rates(first, second, CHANNEL_KEY) == NO_RATES

    def test_another_process_is_a_gap(self) -> None:
        first, restarted = read(make_document()), make_document(message_count=90)
        restarted["start_time"] = 8

        assert find_rates(first, read(restarted, 3.0), CHANNEL_KEY) == NO_RATES

    def test_nothing_to_compare_with(self) -> None:
        sample = read(make_document())

        assert find_rates(None, sample, CHANNEL_KEY) == NO_RATES
        assert find_rates(sample, sample, CHANNEL_KEY) == NO_RATES
        assert find_rates(sample, read(make_document(), 2.0), ("other", "")) == NO_RATES


def test_keys_are_shared_and_forgotten() -> None:
    keys = KeyTable()
    first = keys.get("a", "b")

    assert keys.get("".join(["a"]), "b") is first
    for number in range(2000):
        keys.get(f"t{number}", "")
    keys.keep_only({first: None})
    assert keys.get("a", "b") is first
    assert (DEPTH, CLIENTS) == (0, 7)


COLUMNS = [
    *("topic", "channel", "depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("message_count", "requeue_count", "timeout_count", "client_count", "message_bytes"),
    *("finish_count", "paused", "disk_bytes", "more"),
]


def make_row(topic: str, channel: str | None, *, count: int = 1, more: Any = None) -> list[Any]:
    return [topic, channel, 5, 2, 3, 1, count, 4, 2, 7, 0, 9, False, 0, more]


def make_delta(*rows: list[Any], full: bool = False, **changes: Any) -> dict[str, Any]:
    document = {"version": "1.3.0", "health": "OK", "start_time": 7, "seq": 5, "full": full}
    return document | {"columns": COLUMNS, "rows": list(rows), "removed": []} | changes


def test_rows_of_a_delta_replace_those_before() -> None:
    keys = KeyTable()
    more = {"dead_letter_topic": "orders.dead"}
    first = read_delta(
        make_delta(
            *(make_row("orders", None, more=more), make_row("orders", "mail")),
            *(make_row("old", None), make_row("new", None)),
            full=True,
        ),
        *(1.0, keys),
    )
    assert first is not None
    second = read_delta(
        make_delta(
            *(make_row("orders", "mail", count=8), make_row("new", "c", more={"archive": {}})),
            removed=[["old", None], ["never", "seen"]],
            seq=6,
        ),
        *(2.0, keys, first),
    )

    assert second is not None
    assert (first.seq, second.seq) == (5, 6)
    assert list(second.queues) == [KEY, CHANNEL_KEY, ("new", ""), ("new", "c")]
    assert second.queues[CHANNEL_KEY][MESSAGE_COUNT] == 8
    assert second.queues[KEY][EXTRA].dead_letter_topic == "orders.dead"
    assert second.queues[("new", "")][EXTRA] is None
    assert first.queues[CHANNEL_KEY][MESSAGE_COUNT] == 1
    third = read_delta(make_delta(make_row("orders", None)), 3.0, keys, second)
    assert third is not None
    assert third.queues[KEY][EXTRA] is None
    assert len(third.queues) == 4


def test_a_delta_that_does_not_continue_the_sample_is_none() -> None:
    keys = KeyTable()
    first = read_delta(make_delta(make_row("orders", None), full=True), 1.0, keys)

    assert read_delta(make_delta(), 2.0, keys) is None
    assert read_delta(make_delta(start_time=8), 2.0, keys, first) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": None},
        {"columns": COLUMNS[:-1], "rows": [make_row("a", None)]},
        {"removed": [["a"]]},
        {"removed": [[["a"], None]]},
        {"rows": [make_row("a b", None)]},
        {"rows": [make_row("a", None, count=-1)]},
        {"rows": [make_row("a", None, count=2**63)]},
        {"rows": [make_row("a", None, more=5)]},
        {"rows": [["a"]]},
        {"rows": [5]},
    ],
)
def test_a_delta_that_is_wrong_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(BadStatsError):
        read_delta(make_delta(full=True) | changes, 1.0, KeyTable())
