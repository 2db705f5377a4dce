"""PublishLine: large publishes in slices, all or nothing, in order with those around them."""

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.broker.archive.archive import Archive, Backlog, Safety
from nsqd.broker.archive.gathering import Records
from nsqd.broker.errors import ClosedError, DepthLimitError
from nsqd.broker.publish_line import (
    GROUP_MAX_COUNT,
    GROUP_MAX_PUTS,
    LINE_MAX_BYTES,
    PART_MAX_BYTES,
    PART_MAX_COUNT,
    Preparation,
    Publish,
)
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, AnyBatch, Batch
from nsqd.broker.queue.ids import SEQUENCE_COUNT, MessageIdFactory
from nsqd.broker.queue.pace import Pace
from nsqd.config.limits import Limits
from tests.support.broker_rig import BrokerRig

LARGE = SEQUENCE_COUNT + 3
BODIES = [b"%05d" % number for number in range(LARGE)]


def rig_of(path: Path, *channels: str, mem_queue_size: int = 0) -> BrokerRig:
    rig = BrokerRig(path, mem_queue_size=mem_queue_size)
    for name in channels:
        rig.channel(name)
    return rig


def in_slices(rig: BrokerRig) -> BrokerRig:
    rig.scheduler.has_tiny_slices = True
    return rig


@settings(max_examples=25, deadline=None)
@given(
    mem_queue_size=st.sampled_from([0, 1, 1000, 5000, 100_000]),
    channel_count=st.integers(0, 3),
    has_tiny_slices=st.booleans(),
    count=st.sampled_from([LARGE, 2 * SEQUENCE_COUNT + 1]),
)
def test_slices_give_the_same_as_none(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    mem_queue_size: int,
    channel_count: int,
    has_tiny_slices: bool,
    count: int,
) -> None:
    names = [f"c{number}" for number in range(channel_count)]
    rig = rig_of(tmp_path_factory.mktemp("data"), *names, mem_queue_size=mem_queue_size)
    rig.scheduler.has_tiny_slices = has_tiny_slices
    bodies = [b"%06d" % number for number in range(count)]
    rig.publish(b"first")

    rig.publish(*bodies)
    rig.publish(b"last")

    expected = [b"first", *bodies, b"last"]
    topic = rig.topic()
    assert (topic.message_count, topic.message_bytes) == (count + 2, 6 * count + 9)
    for name in names or ["late"]:
        channel = rig.channel(name)
        rig.settle()
        assert channel.message_count == count + 2
        assert channel.queue.depth == count + 2
        assert channel.queue.backend_depth == max(count + 2 - mem_queue_size, 0)
        client = rig.client(name)
        assert client.bodies == expected
        assert len({delivery.message_id for delivery in client.take()}) == count + 2


def test_others_publish_while_it_is_prepared_and_it_appears_at_once(tmp_path: Path) -> None:
    rig = in_slices(rig_of(tmp_path, "a", "b"))
    receipt = rig.topic().publish(BODIES)
    assert receipt is not None
    assert receipt.holds_publisher

    rig.scheduler.turn()
    assert rig.topic().publish([b"small"]) is None
    assert rig.channel("a").depth == 1
    depths = []
    while not receipt.is_done:
        rig.scheduler.turn()
        depths.append((rig.channel("a").depth, rig.channel("b").depth, rig.topic().message_count))

    assert set(depths) == {(1, 1, 1), (LARGE + 1,) * 3}
    assert rig.client("a").bodies == [b"small", *BODIES]


def test_a_deferred_publish_from_the_line_is_done_when_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=1)
    rig.channel("a")
    rig.scheduler.holds_threads = True
    synced_bytes = {}
    fsync = os.fsync

    def note(fd: int) -> None:
        synced_bytes[Path(os.readlink(f"/proc/self/fd/{fd}"))] = os.fstat(fd).st_size
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    rig.topic().publish(BODIES)
    deferred = rig.topic().publish([b"deferred"], delay_s=1.0)
    assert deferred is not None

    while not deferred.is_done:
        rig.scheduler.finish_thread()
        rig.settle()

    newest = max(tmp_path.glob("t:a.diskqueue.0*.dat"))
    assert b"deferred" in newest.read_bytes()
    assert synced_bytes[newest] == newest.stat().st_size


def test_publishes_wait_behind_one_that_is_being_written(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", "b")
    rig.scheduler.holds_threads = True
    large = rig.topic().publish(BODIES)
    second = rig.topic().publish([b"second"])
    third = rig.topic().publish([b"third"], delay_s=1.0)
    fourth = rig.topic().publish([b"fourth"])
    assert large is not None
    assert second is not None
    assert third is not None
    assert fourth is not None
    assert large.holds_publisher
    assert not second.holds_publisher
    assert rig.channel("a").depth == 0

    while not fourth.is_done:
        rig.scheduler.finish_thread()
        rig.settle()

    assert large.is_done
    assert second.is_done
    assert third.is_done
    client = rig.client("b")
    assert client.bodies == [*BODIES, b"second", b"fourth"]
    rig.advance(1.1)
    assert client.bodies[-1] == b"third"


def test_the_queue_goes_on_while_it_is_written(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    rig.publish(b"one", b"two")
    client = rig.client("a", ready=2)
    rig.scheduler.holds_threads = True
    receipt = rig.topic().publish(BODIES)

    one, two = client.take()
    client.finish(one.message_id)
    client.requeue(two.message_id)
    rig.scheduler.turn()
    assert [delivery.body for delivery in client.take()] == [b"two"]
    client.finish(two.message_id)
    assert receipt is not None
    assert not receipt.is_done
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    client.ready(100_000)
    rig.settle()

    assert client.bodies == BODIES


def test_a_long_line_holds_its_publishers(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a")
    rig.scheduler.holds_threads = True
    rig.topic().publish(BODIES)

    receipts = [rig.topic().publish([bytes(LINE_MAX_BYTES // 3)]) for _ in range(4)]

    assert [receipt is not None and receipt.holds_publisher for receipt in receipts] == [
        *(False, False, True, True)
    ]
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.settle()
    assert rig.channel("a").depth == LARGE + 4
    receipt = rig.topic().publish(BODIES)
    rig.settle()
    assert receipt is not None
    assert receipt.is_done


@pytest.mark.parametrize(
    ("channel_count", "batch_count", "most"),
    [
        (1, 1, GROUP_MAX_PUTS),
        (16, 1, GROUP_MAX_PUTS // 16),
        (1, 1000, GROUP_MAX_COUNT // 1000 * 1000),
    ],
)
def test_publishes_are_written_together_as_far_as_a_turn_has_time(
    tmp_path: Path, *, channel_count: int, batch_count: int, most: int
) -> None:
    rig = rig_of(tmp_path, *(f"c{number}" for number in range(channel_count)))
    rig.scheduler.holds_threads = True
    rig.topic().publish(BODIES)
    publish_count = 2 * most // batch_count
    receipts = [rig.topic().publish([b"x"] * batch_count) for _ in range(publish_count)]
    seen = []

    while not all(receipt is not None and receipt.is_done for receipt in receipts):
        before = rig.topic().message_count
        rig.scheduler.finish_thread()
        rig.settle()
        seen.append(rig.topic().message_count - before)

    assert max(seen[1:]) == most


@pytest.mark.parametrize("mem_queue_size", [0, 10])
def test_a_disk_that_refuses_has_refused_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mem_queue_size: int
) -> None:
    rig = in_slices(rig_of(tmp_path, "a", "b", mem_queue_size=mem_queue_size))

    def refuse(real: Callable[..., int], fd: int, data: object, position: int) -> int:
        if "t:b" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", partial(refuse, os.pwritev))
        patch.setattr(os, "pwrite", partial(refuse, os.pwrite))
        with pytest.raises(OSError, match="full"):
            rig.publish(*BODIES)

    assert rig.broker.health != "OK"
    assert rig.channel("a").depth == rig.channel("b").depth == 0
    assert rig.topic().message_count == 0
    rig.publish(*BODIES)
    assert rig.broker.is_healthy
    assert rig.client("a").bodies == rig.client("b").bodies == BODIES


def test_emptying_between_write_and_appearance_writes_it_again(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "a", "b")
    rig.publish(b"before")
    rig.scheduler.holds_threads = True
    receipt = rig.topic().publish(BODIES)
    rig.scheduler.finish_thread()

    rig.channel("b").empty()
    rig.scheduler.holds_threads = False
    rig.settle()

    assert receipt is not None
    assert receipt.is_done
    assert receipt.error is None
    assert rig.client("a").bodies == [b"before", *BODIES]
    assert rig.client("b").bodies == BODIES


@pytest.mark.parametrize("is_written", [False, True])
def test_a_channel_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, *, is_written: bool
) -> None:
    rig = rig_of(tmp_path, "a", "b")
    rig.scheduler.holds_threads = True
    receipt = rig.topic().publish(BODIES)
    if is_written:
        rig.scheduler.finish_thread()

    rig.topic().delete_channel("b")
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    rig.settle()

    assert receipt is not None
    assert receipt.is_done
    assert receipt.error is None
    assert rig.client("a").bodies == BODIES
    assert not list(tmp_path.glob("t:b*"))


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_topic_that_is_deleted_refuses_it(tmp_path: Path, turns: int) -> None:
    rig = in_slices(rig_of(tmp_path, "a"))
    rig.scheduler.holds_threads = True
    receipt = rig.topic().publish(BODIES)
    behind = None
    if turns == 2:
        while not rig.scheduler.held_work:
            rig.scheduler.turn()
        behind = rig.topic().publish([b"behind"])
        rig.scheduler.finish_thread()
    elif turns:
        rig.scheduler.turn()

    rig.broker.delete_topic("t")
    rig.scheduler.holds_threads = False
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
    rig.settle()

    assert receipt is not None
    assert isinstance(receipt.error, ClosedError)
    assert behind is None or isinstance(behind.error, ClosedError)
    assert not list(tmp_path.glob("t*diskqueue*"))
    rig.channel("a")
    rig.publish(*BODIES)
    assert rig.client("a").bodies == BODIES


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_daemon_that_stops_keeps_the_one_being_written(tmp_path: Path, *, is_begun: bool) -> None:
    rig = rig_of(tmp_path, "a", "b", mem_queue_size=7)
    rig.scheduler.holds_threads = True
    receipt = rig.topic().publish(BODIES)
    behind = rig.topic().publish([b"behind"])
    if is_begun:
        rig.scheduler.finish_thread()

    rig.scheduler.holds_threads = False
    assert rig.broker.close() == []
    rig.settle()

    assert receipt is not None
    assert receipt.is_done
    assert receipt.error is None
    assert behind is not None
    assert isinstance(behind.error, ClosedError)
    again = rig_of(tmp_path, "a", "b")
    for name in ("a", "b"):
        assert sorted(again.client(name).bodies) == BODIES


def test_a_paused_topic_keeps_it_until_it_goes_on(tmp_path: Path) -> None:
    rig = in_slices(rig_of(tmp_path, "a"))
    rig.topic().pause()
    rig.publish(*BODIES)
    assert rig.topic().depth == LARGE

    rig.topic().unpause()
    rig.settle()

    assert rig.client("a").bodies == BODIES


def test_a_queue_without_room_refuses_it(tmp_path: Path) -> None:
    rig = in_slices(BrokerRig(tmp_path, limits=Limits(max_depth=LARGE - 1)))
    rig.channel("a")

    with pytest.raises(DepthLimitError):
        rig.publish(*BODIES)

    assert rig.topic().losses.rejected_count == 1
    assert rig.channel("a").depth == 0


def test_a_node_that_drains_refuses_it_when_its_turn_comes(tmp_path: Path) -> None:
    rig = in_slices(rig_of(tmp_path, "a"))
    receipt = rig.topic().publish(BODIES)

    rig.broker.drain()
    rig.settle()

    assert receipt is not None
    assert str(receipt.error) == "draining"
    assert rig.channel("a").depth == 0


def test_durable_publishes_wait_for_their_sync(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0, sync_every=1)
    rig.channel("a")
    rig.scheduler.holds_threads = True
    receipts = [
        rig.topic().publish(BODIES),
        rig.topic().publish([b"x"]),
        rig.topic().publish([b"y"]),
    ]

    rig.scheduler.finish_thread()  # the write of the first
    rig.scheduler.turn()
    assert rig.channel("a").depth == LARGE
    assert not any(receipt is None or receipt.is_done for receipt in receipts)
    for _ in range(20):
        if rig.scheduler.held_work:
            rig.scheduler.finish_thread()
        rig.settle()

    assert all(receipt is not None and receipt.is_done for receipt in receipts)


def test_parts_are_bounded_in_count_and_bytes() -> None:
    bodies = [bytes(10)] * 2000 + [bytes(PART_MAX_BYTES)] + [bytes(PART_MAX_BYTES // 2)] * 5
    publish = Publish(is_large=True)
    preparation = Preparation(publish, bodies, 1, MessageIdFactory(1), 0)

    while preparation.step(0.0):
        pass

    batches = [part.batch for part in publish.parts]
    assert [body for batch in batches for body in batch.bodies] == bodies
    assert (publish.count, publish.size_bytes) == (len(bodies), sum(map(len, bodies)))
    for batch in batches:
        assert len(batch.bodies) <= PART_MAX_COUNT
        assert len(batch.bodies) == 1 or batch.body_bytes <= PART_MAX_BYTES
    assert len(batches) < 15


def test_a_large_publish_is_freed_in_steps() -> None:
    publish = Publish(is_large=True)
    preparation = Preparation(publish, [b"x"] * 20_000, 1, MessageIdFactory(1), 0)
    while preparation.step(0.0):
        pass
    steps = 1

    while publish.free():
        steps += 1

    assert steps == 3
    assert not publish.parts


@pytest.mark.parametrize("mem_queue_size", [0, 100_000])
def test_history_has_all_of_it(tmp_path: Path, mem_queue_size: int) -> None:
    rig = in_slices(BrokerRig(tmp_path, mem_queue_size=mem_queue_size))
    rig.channel("a")
    topic = rig.topic()
    topic.archive = archive = RecordingArchive()

    rig.publish(*BODIES)

    assert archive.bodies == BODIES
    assert archive.record_bytes == (5 + RECORD_OVERHEAD_BYTES) * LARGE, "all records are shared"


class RecordingArchive(Archive):
    """Notes the batches, and whether their records came with them."""

    safety = Safety.GATHERED
    batch_type = Batch

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.record_bytes = 0
        self._waiting_bytes = 0
        self._backlog = Backlog(lambda: None, lambda _: None, Pace(time.monotonic))

    def add(self, batch: AnyBatch, records: Records | None = None) -> None:
        """Note a batch."""
        self.bodies += batch.bodies
        self.record_bytes += 0 if records is None else len(records[0])
