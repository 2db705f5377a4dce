"""The wall clock steps by an hour: deadlines and due times go by another clock."""

from pathlib import Path

import pytest

from nsqd.broker.durations import LatencyQuantiles
from tests.support.broker_rig import BrokerRig

HOUR_NS = 3600 * 10**9

both_ways = pytest.mark.parametrize("step_ns", [-HOUR_NS, HOUR_NS])


@both_ways
def test_timeouts_and_delays_take_as_long_as_ever(tmp_path: Path, step_ns: int) -> None:
    rig = BrokerRig(tmp_path)
    client = rig.client(ready=1)
    rig.publish(b"in flight")
    rig.publish(b"deferred", delay_s=90.0)

    rig.scheduler.wall_ns += step_ns
    rig.advance(59)
    assert client.bodies == [b"in flight"]
    rig.advance(2)
    assert client.bodies == [b"in flight", b"in flight"]
    client.ready(10)
    rig.advance(28)
    assert b"deferred" not in client.bodies
    rig.advance(2)

    assert client.bodies[-1] == b"deferred"


@both_ways
@pytest.mark.parametrize("mem_queue_size", [0, 100])
def test_ids_grow_and_order_is_kept(tmp_path: Path, step_ns: int, mem_queue_size: int) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
    client = rig.client()
    for _ in range(3):
        rig.publish(b"before")
        rig.scheduler.wall_ns += step_ns
        rig.publish(b"after")

    ids = [delivery.message_id for delivery in client.take()]
    assert len(ids) == 6
    assert ids == sorted(set(ids))


def test_a_clock_that_was_set_back_gives_no_negative_latency() -> None:
    latencies = LatencyQuantiles((1.0, 0.5), 600.0)
    latencies.insert_many([-HOUR_NS, -HOUR_NS, 5], 0.0)

    assert latencies.result(0.0) == (3, [(1.0, 5), (0.5, 0)])
