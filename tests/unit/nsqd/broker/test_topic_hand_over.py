"""Every channel gets every message once, and the topic forgets a record only when all have it."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from nsqd.broker.channel import Channel, ChannelSettings
from nsqd.broker.queue.backend import DiskBackend, NullBackend
from nsqd.broker.queue.batch import AnyBatch, Batch
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.queue.message_queue import MessageQueue
from nsqd.broker.queue.receipt import Receipt, Receipts
from nsqd.broker.topic import MAX_MESSAGES_PER_PIECE, HandOver
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler


class TopicQueue(MessageQueue):
    """A queue that notes the records that it is told to forget."""

    __slots__ = ("committed",)

    committed: list[int]

    def commit(self, ordinals: Iterable[int]) -> None:
        self.committed = [*self.committed, *ordinals]


class ManualChannel(Channel):
    """A channel in memory whose puts a test can refuse, and whose syncs a test has to end."""

    def __init__(self, name: str, scheduler: FakeScheduler, receipts: Receipts) -> None:
        settings = ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0)
        super().__init__("t", name, MessageQueue(10_000, NullBackend()), scheduler, settings)
        self.refuses = False
        self._receipts = receipts
        self._unsynced: list[Receipt] = []

    def put(self, batch: AnyBatch, *, is_stored: bool = False) -> None:
        if self.refuses:
            raise OSError("refused")
        super().put(batch)
        self._receipts.note(self)

    def add_receipt(self, receipt: Receipt) -> None:
        self._unsynced.append(receipt)

    def sync(self, error: OSError | None = None) -> None:
        """End the sync of everything that was put so far."""
        unsynced, self._unsynced = self._unsynced, []
        for receipt in unsynced:
            receipt.settle(error)

    @property
    def bodies(self) -> list[bytes]:
        return [message[3] for message, _ in self.queue.iter_loaded()]


class Rig:
    """A topic's queue, with memory for `mem_queue_size` messages, and channels `a` and `b`."""

    def __init__(self, data_path: Path, *, mem_queue_size: int = 0) -> None:
        self.scheduler = FakeScheduler()
        self.receipts = Receipts(needs_sync=False)
        backend = DiskBackend("t", disk_settings(data_path), self.scheduler, lambda error: None)
        self.queue = TopicQueue(mem_queue_size, backend)
        self.queue.committed = []
        self.a = ManualChannel("a", self.scheduler, self.receipts)
        self.b = ManualChannel("b", self.scheduler, self.receipts)
        self.channels: dict[str, Channel] = {"a": self.a, "b": self.b}
        self.hand_over = HandOver(self.queue, self.channels, self.receipts, self.scheduler)
        self._ids = MessageIdFactory(1)

    def batch(self, *bodies: bytes) -> Batch:
        return Batch(1, *self._ids.reserve(len(bodies), 1), bodies)

    def put(self, *bodies: bytes) -> None:
        self.queue.put(self.batch(*bodies))

    def move(self) -> None:
        self.hand_over.move()

    def move_and_fail(self) -> None:
        with pytest.raises(OSError, match="refused"):
            self.hand_over.move()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_direct_copy_is_in_every_channel(rig: Rig) -> None:
    rig.hand_over.copy(rig.batch(b"x", b"y"))

    assert rig.a.bodies == rig.b.bodies == [b"x", b"y"]


@pytest.mark.parametrize("refusing", ["a", "b"])
def test_a_direct_copy_that_one_channel_refuses_is_in_none(rig: Rig, refusing: str) -> None:
    rig.hand_over.copy(rig.batch(b"before"))
    getattr(rig, refusing).refuses = True

    with pytest.raises(OSError, match="refused"):
        rig.hand_over.copy(rig.batch(b"x"))

    assert rig.a.bodies == rig.b.bodies == [b"before"]
    assert rig.a.message_count == rig.b.message_count == 1


def test_the_queue_is_moved_to_every_channel_in_order(rig: Rig) -> None:
    rig.put(b"1", b"2")
    rig.put(b"3")

    rig.move()

    assert rig.a.bodies == rig.b.bodies == [b"1", b"2", b"3"]
    assert rig.queue.depth == 0
    assert not rig.hand_over.is_partial


def test_a_slice_ends_after_a_piece_in_one_channel(tmp_path: Path) -> None:
    rig = Rig(tmp_path, mem_queue_size=100_000)
    rig.scheduler.has_tiny_slices = True
    rig.put(*[b"x"] * (MAX_MESSAGES_PER_PIECE + 1))

    rig.move()
    assert (rig.a.depth, rig.b.depth) == (MAX_MESSAGES_PER_PIECE, 0)
    assert rig.queue.depth == MAX_MESSAGES_PER_PIECE + 1
    rig.move()
    assert (rig.a.depth, rig.b.depth) == (MAX_MESSAGES_PER_PIECE,) * 2
    assert not rig.hand_over.is_partial
    rig.move()
    rig.move()

    assert (rig.a.depth, rig.b.depth) == (MAX_MESSAGES_PER_PIECE + 1,) * 2
    assert rig.queue.depth == 0


def test_a_channel_that_comes_between_two_slices_gets_the_piece_too(rig: Rig) -> None:
    rig.scheduler.has_tiny_slices = True
    rig.put(b"1")
    rig.move()
    del rig.channels["a"]
    rig.hand_over.remove_channel(rig.a)
    rig.channels["c"] = rig.a

    rig.move()
    rig.move()

    assert rig.a.bodies == [b"1", b"1"]
    assert rig.b.bodies == [b"1"]
    assert rig.queue.depth == 0


def test_a_refused_piece_waits_and_is_copied_to_the_missing_channel_alone(rig: Rig) -> None:
    rig.put(b"1")
    rig.put(b"2")
    rig.b.refuses = True

    rig.move_and_fail()
    assert rig.hand_over.is_partial
    assert rig.queue.depth == 2
    rig.move_and_fail()
    rig.b.refuses = False
    rig.move()

    assert rig.a.bodies == rig.b.bodies == [b"1", b"2"]
    assert not rig.hand_over.is_partial


def test_a_deleted_channel_is_not_waited_for(rig: Rig) -> None:
    rig.put(b"1")
    rig.b.refuses = True
    rig.move_and_fail()

    del rig.channels["a"]
    rig.hand_over.remove_channel(rig.a)
    assert not rig.hand_over.is_partial
    rig.b.refuses = False
    rig.move()

    assert rig.b.bodies == [b"1"]
    assert rig.queue.depth == 0


def test_after_the_queue_was_emptied_every_channel_gets_the_next_piece(rig: Rig) -> None:
    rig.put(b"emptied")
    rig.b.refuses = True
    rig.move_and_fail()

    rig.hand_over.clear()
    rig.queue.empty()
    assert not rig.hand_over.is_partial
    rig.b.refuses = False
    rig.put(b"next")
    rig.move()

    assert rig.a.bodies == [b"emptied", b"next"]
    assert rig.b.bodies == [b"next"]


def test_records_are_forgotten_when_every_channel_has_synced(rig: Rig) -> None:
    rig.put(b"1", b"2")
    rig.move()
    rig.a.sync()
    assert rig.queue.committed == []

    rig.b.sync()

    assert rig.queue.committed == [0, 1]


def test_the_sync_of_an_earlier_try_counts_too(rig: Rig) -> None:
    rig.put(b"1")
    rig.b.refuses = True
    rig.move_and_fail()
    rig.b.refuses = False
    rig.move()

    rig.b.sync()
    assert rig.queue.committed == []
    rig.a.sync()

    assert rig.queue.committed == [0]


def test_records_wait_only_for_the_copies_of_their_own_piece(rig: Rig) -> None:
    rig.put(b"1")
    rig.move()
    rig.a.sync()
    rig.b.sync(OSError("lost"))
    rig.put(b"2")
    rig.move()

    rig.a.sync()
    rig.b.sync()

    assert rig.queue.committed == [1]


def test_the_copies_of_an_emptied_piece_do_not_count_for_the_next(rig: Rig) -> None:
    rig.put(b"emptied")
    rig.b.refuses = True
    rig.move_and_fail()
    rig.hand_over.clear()
    rig.queue.empty()
    rig.a.sync(OSError("lost"))
    rig.b.refuses = False
    rig.put(b"next")
    rig.move()

    rig.a.sync()
    rig.b.sync()

    assert len(rig.queue.committed) == 1


@pytest.mark.parametrize("failing", ["a", "b"])
def test_records_stay_if_a_sync_fails(rig: Rig, failing: str) -> None:
    rig.put(b"1")
    rig.move()

    rig.a.sync(OSError("lost") if failing == "a" else None)
    rig.b.sync(OSError("lost") if failing == "b" else None)

    assert rig.queue.committed == []
    rig.hand_over.forget_records()
    assert rig.queue.committed == []


def test_records_of_an_emptied_queue_are_not_forgotten_once_more(rig: Rig) -> None:
    rig.put(b"1")
    rig.move()
    rig.hand_over.clear()
    rig.queue.empty()

    rig.a.sync()
    rig.b.sync()
    rig.hand_over.forget_records()

    assert rig.queue.committed == []


def test_before_a_close_records_are_forgotten_once(rig: Rig) -> None:
    rig.put(b"1")
    rig.move()

    rig.hand_over.forget_records()
    assert rig.queue.committed == [0]
    rig.a.sync()
    rig.b.sync()
    rig.hand_over.forget_records()

    assert rig.queue.committed == [0]


def test_messages_in_memory_have_no_records_to_forget(tmp_path: Path) -> None:
    rig = Rig(tmp_path, mem_queue_size=10)
    rig.put(b"1")

    rig.move()
    rig.a.sync()
    rig.b.sync()

    assert rig.a.bodies == rig.b.bodies == [b"1"]
    assert rig.queue.committed == []


def test_a_failed_commit_does_not_make_channels_miss_the_next_piece(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.channels.clear()
    rig.channels["a"] = channel = Channel(
        *("t", "a#ephemeral", MessageQueue(10, NullBackend()), rig.scheduler),
        ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0),
    )
    rig.put(b"1")
    rig.put(b"2")

    def refuse(queue: MessageQueue, ordinals: object) -> None:
        raise OSError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(TopicQueue, "commit", refuse)
        rig.move_and_fail()  # the copy in memory needs no sync, so the record goes at once
    rig.move()

    assert [message[3] for message, _ in channel.queue.iter_loaded()] == [b"1", b"2"]
