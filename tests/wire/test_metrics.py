"""/metrics over HTTP: both formats, every figure, while delivery goes on."""

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import nsqd as nsqd_package
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd

TOPIC_COUNT = 1000
CHANNELS = ("a#ephemeral", "b#ephemeral", "c#ephemeral")


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect(nsqd) as client:
        yield client


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


def samples(text: str) -> dict[str, float]:
    """Every sample by name and sorted labels."""
    found = {}
    for family in parse_text(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


async def scrape(http: HttpClient) -> dict[str, float]:
    reply = await http.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "x-nsq-content-type" not in reply.headers
    return samples(reply.text)


async def test_figures_of_a_working_node(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(mem_queue_size=2, sync_timeout_s=0.01)
    consumer = await nsqd.consumer("t", rdy=3)
    producer = await nsqd.connect()
    await producer.publish("t", *[b"12345"] * 10)
    messages = await consumer.read_messages(3)
    consumer.fin(messages[0])
    consumer.req(messages[1], 60_000)
    await nsqd.wait_for_channel("t", in_flight_count=3, deferred_count=1)
    await nsqd.post("/topic/create?topic=u")
    await producer.publish("u", *[b"x"] * 5)
    await asyncio.sleep(0.1)  # a sync is due after 10 ms

    async with await connect(nsqd) as http:
        found = await scrape(http)

    expected = {
        "nsqd_healthy{}": 1,
        "nsqd_topics{}": 2,
        "nsqd_channels{}": 1,
        "nsqd_connections{}": 2,
        "nsqd_producers{}": 1,
        "nsqd_consumers{}": 1,
        "nsqd_topic_messages_total{topic=t}": 10,
        "nsqd_topic_message_bytes_total{topic=t}": 50,
        "nsqd_topic_depth{store=memory,topic=u}": 2,
        "nsqd_topic_depth{store=disk,topic=u}": 3,
        "nsqd_topic_disk_segments{topic=u}": 1,
        "nsqd_channel_messages_total{channel=ch,topic=t}": 10,
        "nsqd_channel_finished_total{channel=ch,topic=t}": 1,
        "nsqd_channel_requeued_total{channel=ch,topic=t}": 1,
        "nsqd_channel_timed_out_total{channel=ch,topic=t}": 0,
        "nsqd_channel_in_flight{channel=ch,topic=t}": 3,
        "nsqd_channel_deferred{channel=ch,topic=t}": 1,
        "nsqd_channel_clients{channel=ch,topic=t}": 1,
        "nsqd_channel_finish_time_seconds_count{channel=ch,topic=t}": 1,
    }
    assert {key: found.get(key) for key in expected} == expected
    waiting = [
        f"nsqd_channel_depth{{channel=ch,store={store},topic=t}}" for store in ("memory", "disk")
    ]
    assert sum(found[key] for key in waiting) == 5
    assert found["nsqd_topic_disk_bytes{topic=u}"] == 3 * (4 + 26 + 1)
    assert found["nsqd_fsync_duration_seconds_count{}"] >= 1
    assert found["nsqd_loop_lag_seconds_count{}"] >= 1
    assert found["process_resident_memory_bytes{}"] > 1e6
    assert f"nsqd_info{{build={nsqd_package.__version__},version=1.3.0}}" in found


async def test_the_bounds_of_the_histograms(nsqd: RunningDaemon, http: HttpClient) -> None:
    """A dashboard's queries name some of them."""
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    consumer.fin(*await consumer.read_messages(1))
    await nsqd.wait_for_channel("t", in_flight_count=0, depth=0)

    found = await scrape(http)

    def bounds(name: str) -> list[float]:
        keys = [key for key in found if key.startswith(f"{name}_bucket")]
        return [float(key.partition("le=")[2].rstrip("}").partition(",")[0]) for key in keys]

    assert bounds("nsqd_fsync_duration_seconds") == [
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        float("inf"),
    ]
    assert bounds("nsqd_channel_finish_time_seconds") == [
        *(0.005, 0.025, 0.1, 0.5, 1, 5, 30, 60, 300, 900),
        float("inf"),
    ]


async def test_openmetrics_for_who_asks_for_it(nsqd: RunningDaemon, http: HttpClient) -> None:
    await nsqd.publish("t", b"x")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

    reply = await http.request("GET", "/metrics", headers={"Accept": accept})

    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.text.endswith("\n# EOF\n")
    families = {
        family.name: family
        for family in parse_openmetrics(reply.text)  # type: ignore[no-untyped-call]
    }
    assert families["nsqd_topic_messages"].type == "counter"
    [sample] = families["nsqd_topic_messages"].samples
    assert (sample.name, sample.labels, sample.value) == (
        "nsqd_topic_messages_total",
        {"topic": "t"},
        1,
    )


async def test_health_and_lookupds_are_told(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(lookupd_tcp_addresses=("127.0.0.1:1",))
    nsqd.daemon.broker.disk_health.repeated("sync t", OSError(errno.EIO, "Input/output error"))

    async with await connect(nsqd) as http:
        found = await scrape(http)

    assert found["nsqd_healthy{}"] == 0
    assert found["nsqd_lookupd_connected{address=127.0.0.1:1}"] == 0


async def test_labels_are_bounded_by_the_option(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(metrics_max_queues=3)
    for number in range(10):
        await nsqd.publish(f"t{number}", b"x")

    async with await connect(nsqd) as http:
        found = await scrape(http)

    counted = {key: value for key, value in found.items() if "topic_messages_total" in key}
    assert counted == {
        "nsqd_topic_messages_total{topic=t0}": 1,
        "nsqd_topic_messages_total{topic=t1}": 1,
        "nsqd_topic_messages_total{topic=t2}": 1,
        "nsqd_topic_messages_total{topic=(other)}": 7,
    }


@pytest.mark.parametrize("target", ["/metrics", "/stats", "/stats?format=json"])
async def test_a_large_scrape_lets_others_work_in_between(
    nsqd: RunningDaemon, http: HttpClient, target: str
) -> None:
    for number in range(TOPIC_COUNT):
        topic = nsqd.daemon.broker.ensure_topic(f"topic{number:04}#ephemeral")
        for name in CHANNELS:
            topic.ensure_channel(name)
    await http.get("/ping")
    turns = 0
    is_over = False

    async def count_turns() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    reply = await http.get(target)
    is_over = True
    await counting

    assert reply.status == 200
    assert reply.text.count(f"topic{TOPIC_COUNT - 1:04}#ephemeral") >= 1
    # At 4 ms each there are ten slices in the fastest of them; a few turns are the reply's own.
    assert turns > 8
