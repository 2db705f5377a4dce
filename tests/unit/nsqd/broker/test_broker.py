import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from diskqueue.layout import list_queues
from nsqd.broker import metadata
from nsqd.broker.broker import Work, run_in_turn
from nsqd.broker.errors import ClosedError
from nsqd.broker.metadata import ChannelRecord, TopicRecord
from nsqd.broker.topic import Topic, TopicState
from tests.support.broker_rig import BrokerRig


def numbers(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


@pytest.fixture
def rig(tmp_path: Path) -> BrokerRig:
    return BrokerRig(tmp_path)


def names_of(data_path: Path) -> set[str]:
    """The queues that have files."""
    return {path.name.split(".diskqueue.")[0] for path in data_path.iterdir()}


def test_topics_are_made_once(rig: BrokerRig) -> None:
    topic = rig.broker.ensure_topic("t")

    assert rig.broker.ensure_topic("t") is topic
    assert rig.broker.find_topic("t") is topic
    assert rig.broker.find_topic("x") is None
    assert topic.state is TopicState.RUNNING
    assert rig.announcements == [("t", None)]


def test_each_new_topic_is_announced_and_then_started_by_the_starter(rig: BrokerRig) -> None:
    order: list[object] = []
    rig.broker.listeners.append(lambda topic, channel: order.append("announced"))
    rig.broker.starter = order.append

    topic = rig.broker.ensure_topic("t")
    rig.broker.ensure_topic("t")

    assert order == ["announced", topic]
    assert topic.state is TopicState.STARTING


def test_everything_that_comes_and_goes_is_announced(rig: BrokerRig) -> None:
    # N-3
    rig.channel("a")
    rig.channel("a")
    rig.channel("b#ephemeral")
    rig.topic().delete_channel("a")
    rig.topic().delete_channel("a")
    rig.broker.delete_topic("t")

    assert rig.announcements == [
        ("t", None),
        ("t", "a"),
        ("t", "b#ephemeral"),
        ("t", "a"),
        ("t", "b#ephemeral"),
        ("t", None),
    ]


def test_a_deletion_is_announced_when_it_is_done(rig: BrokerRig) -> None:
    # queues.md quirk 4, improved: the record written then is already right
    rig.channel()
    seen: list[object] = []
    rig.broker.listeners.append(lambda topic, channel: seen.append(rig.broker.records()))

    rig.topic().delete_channel("c")
    rig.broker.delete_topic("t")

    assert seen == [[TopicRecord("t", False, ())], []]


def test_deleting_a_topic_closes_all_its_consumers_and_removes_all_files(rig: BrokerRig) -> None:
    #
    clients = [rig.client("a", ready=1), rig.client("b", ready=1)]
    rig.publish(*numbers(5))
    rig.topic().pause()
    rig.publish(*numbers(5))
    rig.advance(5)

    rig.broker.delete_topic("t")

    assert all(client.sink.is_closed for client in clients)
    assert names_of(rig.data_path) == set()
    assert rig.broker.topics == {}


def test_a_topic_of_the_same_name_begins_anew(rig: BrokerRig) -> None:
    #
    rig.channel()
    rig.publish(*numbers(5))
    rig.broker.delete_topic("t")

    rig.publish(b"new")

    assert rig.topic().message_count == rig.topic().depth == 1
    assert rig.topic().channels == {}


def test_deleting_an_unknown_topic_says_so(rig: BrokerRig) -> None:
    with pytest.raises(KeyError):
        rig.broker.delete_topic("t")


def test_deleting_goes_on_after_a_file_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    clients = [rig.client(name, ready=1) for name in ("a", "b")]
    rig.publish(*numbers(3))
    rig.advance(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _refuse)
        outcome = rig.broker.delete_topic("t")
        rig.settle()

    assert "Operation not permitted" in str(outcome.error)
    assert all(client.sink.is_closed for client in clients)
    assert rig.broker.topics == {}
    assert rig.announcements[-3:] == [("t", "a"), ("t", "b"), ("t", None)]


def assert_deletion_fails(rig: BrokerRig) -> None:
    outcome = rig.broker.delete_topic("t")
    rig.settle()
    assert "Operation not permitted" in str(outcome.error)


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_second_delete_removes_what_the_first_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The topic was made again in between, without the channels whose files are still there."""
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    for name in ("a", "b"):
        rig.client(name, ready=1)
    rig.publish(*numbers(3))
    rig.advance(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _refuse)
        assert_deletion_fails(rig)
        rig.topic()
        assert_deletion_fails(rig)
        rig.topic()
    assert list(tmp_path.glob("t:a.*"))

    outcome = rig.broker.delete_topic("t")
    rig.settle()

    assert outcome.is_done
    assert outcome.error is None
    assert list(tmp_path.glob("t*")) == []


def test_a_failed_deletion_is_tried_again_until_the_disk_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.client("a", ready=1)
    rig.publish(*numbers(3))
    rig.advance(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _refuse)
        assert_deletion_fails(rig)
        rig.advance(10)

    rig.advance(5)

    assert list(tmp_path.glob("t*")) == []
    assert rig.scheduler.pending_timers == []


def test_a_channel_that_is_made_again_after_a_failed_deletion_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.client("a", ready=1)
    rig.publish(*numbers(3))
    rig.advance(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", _refuse)
        assert_deletion_fails(rig)

    client = rig.client("a", ready=10)
    rig.publish(b"new")
    rig.advance(5)

    assert client.bodies == [b"new"]


def test_an_ephemeral_channel_disappears_with_its_last_client(rig: BrokerRig) -> None:
    #
    first = rig.client("c#ephemeral")
    second = rig.client("c#ephemeral")

    first.leave()
    assert "c#ephemeral" in rig.topic().channels
    second.leave()

    assert rig.topic().channels == {}
    assert rig.announcements[-1] == ("t", "c#ephemeral")


def test_an_ephemeral_channel_without_clients_stays_until_one_came_and_went(
    rig: BrokerRig,
) -> None:
    #
    rig.channel("c#ephemeral")
    rig.advance(1000)
    assert "c#ephemeral" in rig.topic().channels

    rig.client("c#ephemeral").leave()

    assert rig.topic().channels == {}


def test_an_ephemeral_topic_disappears_with_its_last_channel(rig: BrokerRig) -> None:
    #
    client = rig.client("c#ephemeral", "t#ephemeral")
    rig.channel("d", "t#ephemeral")
    client.leave()
    assert "t#ephemeral" in rig.broker.topics

    rig.topic("t#ephemeral").delete_channel("d")

    assert rig.broker.topics == {}
    assert rig.announcements[-1] == ("t#ephemeral", None)


def test_an_ephemeral_topic_without_channels_stays(rig: BrokerRig) -> None:
    rig.publish(b"a", topic="t#ephemeral")
    rig.advance(1000)

    assert rig.topic("t#ephemeral").depth == 1


def test_a_channel_of_an_ephemeral_topic_survives_its_clients(rig: BrokerRig) -> None:
    #
    rig.client("c", "t#ephemeral").leave()

    assert "c" in rig.topic("t#ephemeral").channels


def test_what_is_ephemeral_leaves_no_files(tmp_path: Path) -> None:
    #
    rig = BrokerRig(tmp_path, mem_queue_size=2)
    rig.channel("c#ephemeral", "t")
    rig.channel("c#ephemeral", "e#ephemeral")
    rig.channel("c", "e#ephemeral")
    rig.publish(*numbers(5))
    rig.publish(*numbers(5), topic="e#ephemeral")

    assert rig.broker.close() == []

    assert names_of(tmp_path) == {"t", "e#ephemeral:c"}


def test_records_hold_what_is_not_ephemeral(rig: BrokerRig) -> None:
    #
    rig.channel("a", "t")
    rig.channel("b", "t").pause()
    rig.channel("c#ephemeral", "t")
    rig.channel("a", "u#ephemeral")
    rig.topic("v").pause()

    assert rig.broker.records() == [
        TopicRecord("t", False, (ChannelRecord("a", False), ChannelRecord("b", True))),
        TopicRecord("v", True, ()),
    ]


def test_load_makes_topics_and_channels_with_their_pauses(rig: BrokerRig) -> None:
    #
    records = [
        TopicRecord("t", False, (ChannelRecord("a", False), ChannelRecord("b", True))),
        TopicRecord("v", True, (ChannelRecord("c", False),)),
    ]

    rig.broker.load(records)

    assert rig.broker.records() == records
    assert {topic.state for topic in rig.broker.topics.values()} == {TopicState.RUNNING}
    rig.publish(b"x", topic="v")
    assert rig.topic("v").depth == 1


def test_load_skips_invalid_names(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    #
    rig.broker.load(
        [
            TopicRecord("bad name", False, (ChannelRecord("c", False),)),
            TopicRecord("", False, ()),
            TopicRecord("t", False, (ChannelRecord("bad/name", False), ChannelRecord("c", False))),
        ]
    )

    assert rig.broker.records() == [TopicRecord("t", False, (ChannelRecord("c", False),))]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "skipping creation of invalid topic bad name",
        "skipping creation of invalid topic ",
        "skipping creation of invalid channel bad/name",
    ]


def test_load_starts_topics_only_when_their_channels_are_there(tmp_path: Path) -> None:
    # queues.md 2: a backlog goes to all channels of nsqd.dat, not to the first
    rig = BrokerRig(tmp_path)
    rig.publish(*numbers(3))
    assert rig.broker.close() == []

    rig = BrokerRig(tmp_path)
    channels = (ChannelRecord("a", False), ChannelRecord("b", False))
    rig.broker.load([TopicRecord("t", False, channels)])
    rig.settle()

    assert [channel.depth for channel in rig.topic().channels.values()] == [3, 3]


def test_load_does_not_ask_the_starter(rig: BrokerRig) -> None:
    asked: list[Topic] = []
    rig.broker.starter = asked.append

    rig.broker.load([TopicRecord("t", False, ())])

    assert asked == []


@pytest.mark.parametrize("mem_queue_size", [0, 4, 1000])
def test_everything_survives_a_clean_exit(tmp_path: Path, mem_queue_size: int) -> None:
    # D-11
    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
    client = rig.client("c", ready=2)
    rig.publish(*numbers(10))
    client.finish(client.sink.ids[0])
    rig.advance(1)
    rig.publish(b"later", delay_s=50.0)
    rig.publish(*numbers(3), topic="unread")
    in_flight = {delivery.body: delivery.attempts for delivery in client.sink.deliveries[1:]}
    records = rig.broker.records()
    wall_ns = rig.scheduler.wall_ns

    assert rig.broker.close() == []
    assert rig.broker.is_closed
    assert client.sink.is_closed

    rig = BrokerRig(tmp_path, mem_queue_size=mem_queue_size)
    rig.scheduler.wall_ns = wall_ns
    rig.broker.load(records)
    client = rig.client("c")
    found = {delivery.body: delivery.attempts for delivery in client.sink.deliveries}
    expected = {body: in_flight.get(body, 0) + 1 for body in numbers(9, start=1)}
    assert found == expected
    rig.advance(49.9)
    assert b"later" not in client.bodies
    rig.advance(0.2)
    assert client.bodies[-1] == b"later"
    assert rig.client("d", "unread").bodies == numbers(3)


def test_a_closed_queue_always_has_metadata(rig: BrokerRig) -> None:
    # D-11, queues.md 13
    rig.channel()
    rig.publish(b"a", topic="u")

    assert rig.broker.close() == []

    assert {path.name for path in rig.data_path.glob("*.meta.dat")} == {
        "t.diskqueue.meta.dat",
        "t:c.diskqueue.meta.dat",
        "u.diskqueue.meta.dat",
    }


def test_a_closed_broker_takes_nothing(rig: BrokerRig) -> None:
    topic = rig.topic()
    rig.broker.close()

    with pytest.raises(ClosedError):
        rig.broker.ensure_topic("new")
    with pytest.raises(ClosedError):
        topic.publish([b"a"])


def test_nothing_happens_after_the_close(rig: BrokerRig) -> None:
    rig.client(ready=2)
    rig.publish(*numbers(5))
    rig.publish(b"later", delay_s=5.0)
    rig.broker.close()

    rig.advance(1000)

    assert rig.scheduler.pending_timers == []


def test_close_returns_what_went_wrong_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path)
    for name in ("a", "b", "c"):
        rig.publish(b"x", topic=name)
    calls: list[object] = []

    def write(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            _refuse()
        return real_write(*arguments)  # type: ignore[arg-type] # passed on as they came

    real_write = os.pwrite
    monkeypatch.setattr(os, "pwrite", write)
    errors = rig.broker.close()

    assert [error.errno for error in errors] == [errno.EPERM]
    again = BrokerRig(tmp_path)
    assert [again.topic(name).depth for name in ("a", "b", "c")] == [1, 0, 1]


def test_the_blocking_part_of_the_close_can_be_run_by_another(rig: BrokerRig) -> None:
    rig.channel()
    given: list[Work] = []

    def run_all(works: Sequence[Work]) -> list[OSError]:
        given.extend(works)
        return run_in_turn(works)

    assert rig.broker.close(run_all) == []
    assert len(given) == 2


def test_no_sync_is_planned_while_others_close_the_queues(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.channel()
    rig.publish(b"x")
    assert rig.scheduler.pending_timers

    def run_all(works: Sequence[Work]) -> list[OSError]:
        planned.append(len(rig.scheduler.pending_timers))
        return run_in_turn(works)

    planned: list[int] = []
    assert rig.broker.close(run_all) == []

    assert set(planned) == {0}


def test_health_follows_the_latest_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    #
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    assert (rig.broker.health, rig.broker.is_healthy) == ("OK", True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _refuse)
        with pytest.raises(OSError, match="Operation not permitted"):
            rig.topic().publish([b"a"])
    assert rig.broker.health == "NOK - t: operation not permitted"
    assert not rig.broker.is_healthy

    rig.publish(b"b", topic="another")

    assert (rig.broker.health, rig.broker.is_healthy) == ("OK", True)


def test_what_the_broker_records_can_be_saved_and_loaded(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path)
    rig.channel("c").pause()
    metadata.save(tmp_path, metadata.encode(rig.broker.records(), "1.3.0"))

    again = BrokerRig(tmp_path)
    again.broker.load(metadata.load(tmp_path))

    assert again.broker.records() == rig.broker.records()


def test_queues_that_are_new_are_opened_without_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing takes 10 ms with thousands of queues, and a client may create and delete many."""
    old = BrokerRig(tmp_path, mem_queue_size=0)
    old.channel("c", topic="kept")
    old.publish(*numbers(3), topic="kept")
    old.publish(*numbers(2), topic="late")
    old.broker.close()
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    known = [TopicRecord("kept", False, (ChannelRecord("c", False),))]
    rig.broker.load(known, list_queues(tmp_path))
    monkeypatch.setattr(os, "listdir", _refuse)

    rig.channel("d", topic="new")
    rig.broker.delete_topic("kept")
    rig.channel("c", topic="kept")

    assert rig.broker.topics["kept"].channels["c"].depth == 0
    assert rig.topic("late").depth == 2  # had files at the start, though it was not loaded


def test_a_queue_whose_metadata_could_not_be_removed_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions would be believed after a crash, and new segments taken for consumed ones."""
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.broker.load([], {})
    client = rig.client()
    rig.publish(*numbers(3))
    client.finish(*[delivery.message_id for delivery in client.take()])
    rig.advance(10)  # a sync writes the metadata: all is read
    unlink = os.unlink

    def keep_metadata(path: str) -> None:
        if "meta.dat" in path:
            _refuse()
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", keep_metadata)
        rig.broker.delete_topic("t")
        rig.advance(10)
    rig.channel()
    rig.publish(*numbers(4, start=10))
    # A crash: no queue is closed.
    again = BrokerRig(tmp_path, mem_queue_size=0)
    again.broker.load(metadata.add_found([], list_queues(tmp_path)), list_queues(tmp_path))

    assert again.client().bodies == numbers(4, start=10)


def test_room_is_freed_in_slices(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    for name in ("a", "b", "c", "d"):
        client = rig.client(topic=name)
        rig.publish(*numbers(3), topic=name)
        client.finish(*[delivery.message_id for delivery in client.take()])
    rig.advance(10)
    assert len(list(tmp_path.glob("*:c.diskqueue.000000.dat"))) == 4
    rig.scheduler.has_tiny_slices = True

    rig.broker.free_room()
    rig.scheduler.turn()
    rig.broker.delete_topic("d")  # between two slices
    rig.advance(10)

    assert not list(tmp_path.glob("*.diskqueue.000000.dat"))


def _refuse(*_arguments: object, **_options: object) -> int:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_topic_made_again_while_its_files_leave_has_its_new_messages_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    rig = BrokerRig(tmp_path / "data", mem_queue_size=0)
    rig.topic().ensure_channel("c")
    rig.publish(*numbers(100))
    rig.advance(5)
    rig.scheduler.holds_threads = True
    receipt = rig.broker.delete_topic("t")

    rig.topic().ensure_channel("c")
    rig.publish(b"new")
    rig.settle()
    while rig.scheduler.held_work:
        rig.scheduler.finish_thread()
        rig.advance(5)

    assert receipt.is_done
    assert receipt.error is None
    shutil.copytree(tmp_path / "data", tmp_path / "copy")  # a kill
    again = BrokerRig(tmp_path / "copy", mem_queue_size=0)
    assert again.client("c", ready=1000).bodies == [b"new"]
    assert rig.client("c", ready=1000).bodies == [b"new"]


def test_a_close_while_files_leave_removes_them(tmp_path: Path) -> None:
    rig = BrokerRig(tmp_path, mem_queue_size=0)
    rig.topic().ensure_channel("c")
    rig.publish(*numbers(100))
    rig.advance(5)
    rig.scheduler.holds_threads = True
    rig.broker.delete_topic("t")

    assert rig.broker.close() == []

    assert list(tmp_path.iterdir()) == []


def test_readers_of_files_are_told_that_the_disk_runs_short(rig: BrokerRig) -> None:
    told: list[str] = []
    rig.broker.free_room()
    rig.broker.on_short_room = told.append

    rig.broker.free_room()

    assert told == ["the disk runs short"]
