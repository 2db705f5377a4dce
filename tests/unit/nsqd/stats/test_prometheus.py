"""Metrics of topics and channels: the lines of prometheus-client, and bounded."""

from collections.abc import Iterable, Iterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from nsqd.config.limits import Limits
from nsqd.stats.prometheus import OTHER, RowTable
from nsqd.stats.snapshot import ChannelStats, DiskUse, TopicStats
from tests.support.snapshots import channel_stats, make_losses, topic_stats


def finished(name: str, *times_s: float) -> ChannelStats:
    stats = channel_stats(name, finish_count=len(times_s))
    for time_s in times_s:
        stats.finish_times.observe(time_s)
    return stats


def samples(text: str) -> dict[str, float]:
    """Every sample by name and sorted labels."""
    found = {}
    for family in parse_text(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def render(*topics: TopicStats, max_queues: int = 100, is_openmetrics: bool = False) -> str:
    table = RowTable(max_queues)
    for topic in topics:
        table.add(topic)
    return "".join(table.render(is_openmetrics=is_openmetrics))


def test_every_figure_of_a_topic_and_a_channel() -> None:
    channel = channel_stats(
        "c",
        depth=10,
        backend_depth=4,
        in_flight_count=3,
        deferred_count=2,
        message_count=20,
        finish_count=5,
        requeue_count=6,
        timeout_count=7,
        is_paused=True,
        oldest_age_s=8.5,
        losses=make_losses(depth=11, ttl=12, attempts=13, dead_lettered=14),
        disk=DiskUse(222, 3),
    )
    topic = topic_stats(
        *("t", channel),
        depth=9,
        backend_depth=1,
        message_count=30,
        message_bytes=300,
        is_paused=True,
        losses=make_losses(depth=1, ttl=2, attempts=0, dead_lettered=3, rejected=4),
        limits=Limits(max_depth=100, max_depth_bytes=1000, msg_ttl_s=1.5, max_attempts=5),
        disk=DiskUse(111, 2),
    )

    assert samples(render(topic)) == {
        "nsqd_topic_depth{store=memory,topic=t}": 8,
        "nsqd_topic_depth{store=disk,topic=t}": 1,
        "nsqd_topic_messages_total{topic=t}": 30,
        "nsqd_topic_message_bytes_total{topic=t}": 300,
        "nsqd_topic_paused{topic=t}": 1,
        "nsqd_topic_disk_bytes{topic=t}": 111,
        "nsqd_topic_disk_segments{topic=t}": 2,
        "nsqd_topic_rejected_total{topic=t}": 4,
        "nsqd_topic_dropped_total{reason=depth,topic=t}": 1,
        "nsqd_topic_dropped_total{reason=ttl,topic=t}": 2,
        "nsqd_topic_dropped_total{reason=attempts,topic=t}": 0,
        "nsqd_topic_dead_lettered_total{topic=t}": 3,
        "nsqd_topic_max_depth{topic=t}": 100,
        "nsqd_topic_max_depth_bytes{topic=t}": 1000,
        "nsqd_topic_max_attempts{topic=t}": 5,
        "nsqd_topic_msg_ttl_seconds{topic=t}": 1.5,
        "nsqd_channel_dropped_total{channel=c,reason=depth,topic=t}": 11,
        "nsqd_channel_dropped_total{channel=c,reason=ttl,topic=t}": 12,
        "nsqd_channel_dropped_total{channel=c,reason=attempts,topic=t}": 13,
        "nsqd_channel_dead_lettered_total{channel=c,topic=t}": 14,
        "nsqd_channel_depth{channel=c,store=memory,topic=t}": 6,
        "nsqd_channel_depth{channel=c,store=disk,topic=t}": 4,
        "nsqd_channel_in_flight{channel=c,topic=t}": 3,
        "nsqd_channel_deferred{channel=c,topic=t}": 2,
        "nsqd_channel_oldest_message_age_seconds{channel=c,topic=t}": 8.5,
        "nsqd_channel_messages_total{channel=c,topic=t}": 20,
        "nsqd_channel_finished_total{channel=c,topic=t}": 5,
        "nsqd_channel_requeued_total{channel=c,topic=t}": 6,
        "nsqd_channel_timed_out_total{channel=c,topic=t}": 7,
        "nsqd_channel_clients{channel=c,topic=t}": 0,
        "nsqd_channel_paused{channel=c,topic=t}": 1,
        "nsqd_channel_disk_bytes{channel=c,topic=t}": 222,
        "nsqd_channel_disk_segments{channel=c,topic=t}": 3,
    }


def test_of_channels_that_share_a_row_the_oldest_message_counts() -> None:
    topics = [
        topic_stats(f"t{age}", channel_stats("c", oldest_age_s=age, depth=1)) for age in (3, 9, 4)
    ]

    found = samples(render(*topics, max_queues=0))

    labels = f"channel={OTHER},topic={OTHER}"
    assert found[f"nsqd_channel_oldest_message_age_seconds{{{labels}}}"] == 9
    assert found[f"nsqd_channel_depth{{channel={OTHER},store=memory,topic={OTHER}}}"] == 3


def test_finish_times_are_a_histogram() -> None:
    text = render(topic_stats("t", finished("c", 0.004, 0.004, 2.0, 5000.0)))

    found = samples(text)
    name = "nsqd_channel_finish_time_seconds"
    assert found[f"{name}_bucket{{channel=c,le=0.005,topic=t}}"] == 2
    assert found[f"{name}_bucket{{channel=c,le=1.0,topic=t}}"] == 2
    assert found[f"{name}_bucket{{channel=c,le=5.0,topic=t}}"] == 3
    assert found[f"{name}_bucket{{channel=c,le=900.0,topic=t}}"] == 3
    assert found[f"{name}_bucket{{channel=c,le=+Inf,topic=t}}"] == 4
    assert found[f"{name}_count{{channel=c,topic=t}}"] == 4
    assert found[f"{name}_sum{{channel=c,topic=t}}"] == pytest.approx(5002.008)


def test_what_does_not_fit_is_summed_up() -> None:
    """The oldest keep their labels, and one that is too large does not keep out the next."""
    topics = [
        topic_stats("a", channel_stats("x", depth=1), depth=1),
        topic_stats("b", *(finished(f"y{index}", 0.004, 2.0) for index in range(5)), depth=10),
        topic_stats("c", channel_stats("z", depth=100), depth=100),
        topic_stats("d", channel_stats("z", depth=1000), depth=1000),
    ]

    found = samples(render(*topics, max_queues=4))

    assert {key: value for key, value in found.items() if key.startswith("nsqd_topic_depth")} == {
        "nsqd_topic_depth{store=memory,topic=a}": 1,
        "nsqd_topic_depth{store=disk,topic=a}": 0,
        "nsqd_topic_depth{store=memory,topic=c}": 100,
        "nsqd_topic_depth{store=disk,topic=c}": 0,
        f"nsqd_topic_depth{{store=memory,topic={OTHER}}}": 1010,
        f"nsqd_topic_depth{{store=disk,topic={OTHER}}}": 0,
    }
    others = f"channel={OTHER},topic={OTHER}"
    assert found[f"nsqd_channel_finished_total{{{others}}}"] == 10
    assert found[f"nsqd_channel_finish_time_seconds_count{{{others}}}"] == 10
    bucket = f"nsqd_channel_finish_time_seconds_bucket{{channel={OTHER},le=0.005,topic={OTHER}}}"
    assert found[bucket] == 5


def test_with_no_room_at_all_there_is_one_row() -> None:
    topics = [topic_stats(name, channel_stats("c")) for name in "abc"]

    found = samples(render(*topics, max_queues=0))

    assert {key.partition("topic=")[2] for key in found} == {f"{OTHER}}}"}


def by_name(families: Iterable[Metric]) -> dict[str, Metric]:
    return {family.name: family for family in families}


def in_order(family: Metric) -> list[tuple[str, list[tuple[str, str]], float]]:
    return sorted((each.name, sorted(each.labels.items()), each.value) for each in family.samples)


class Reference(Collector):
    """The same figures as families of prometheus-client."""

    def __init__(self, topics: list[TopicStats]) -> None:
        self._topics = topics

    def collect(self) -> Iterator[Metric]:
        published = CounterMetricFamily(
            "nsqd_topic_messages", "Messages published.", labels=["topic"]
        )
        waiting = GaugeMetricFamily(
            "nsqd_channel_deferred",
            "Messages kept back until they are due.",
            labels=["channel", "topic"],
        )
        times = HistogramMetricFamily(
            "nsqd_channel_finish_time_seconds",
            "Time from delivery to FIN; absent where nothing was finished.",
            labels=["channel", "topic"],
        )
        for topic in self._topics:
            published.add_metric([topic.name], topic.message_count)
            for channel in topic.channels:
                labels = [channel.name, topic.name]
                waiting.add_metric(labels, channel.deferred_count)
                histogram = channel.finish_times
                if histogram.count:
                    bounds = [*map(str, histogram.bounds), "+Inf"]
                    buckets = list(zip(bounds, histogram.cumulative(), strict=True))
                    times.add_metric(labels, buckets, histogram.total)
        yield from (published, waiting, times)


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_it_is_what_prometheus_client_would_have_written(*, is_openmetrics: bool) -> None:
    topics = [
        topic_stats(
            f"t{index}",
            finished("c", 0.1 * index, 3.0),
            channel_stats("d", deferred_count=index),
            message_count=1000 * index,
        )
        for index in range(250)
    ]
    reference = Reference(topics)
    text = render(*topics, max_queues=10_000, is_openmetrics=is_openmetrics)
    if is_openmetrics:
        document = generate_openmetrics(reference).decode()  # type: ignore[no-untyped-call]
        expected = by_name(parse_openmetrics(document))  # type: ignore[no-untyped-call]
        ours = by_name(parse_openmetrics(text + "# EOF\n"))  # type: ignore[no-untyped-call]
    else:
        expected = by_name(parse_text(generate_latest(reference).decode()))
        ours = by_name(parse_text(text))

    for name, family in expected.items():
        assert ours[name].type == family.type
        assert ours[name].documentation == family.documentation
        assert in_order(ours[name]) == in_order(family)


def test_of_topics_without_a_row_the_strictest_limit_is_shown() -> None:
    topics = [topic_stats("t", limits=Limits(max_depth=limit)) for limit in (0, 7, 5, 0)]

    found = samples(render(*topics, max_queues=0))

    assert found["nsqd_topic_max_depth{topic=(other)}"] == 5
