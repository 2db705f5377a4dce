"""Any sequence of operations on a MessageQueue over a real DiskQueue, against two lists."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqd.broker.queue import message_queue
from nsqd.broker.queue.backend import DiskBackend
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Batch, Message
from nsqd.broker.queue.message_queue import MessageQueue
from tests.support.channel_rig import disk_settings
from tests.support.fake_scheduler import FakeScheduler

# Small enough for a handful of messages to meet every limit.
KEEP_MAX_COUNT = 2
READ_MAX_RECORDS = 2


@dataclass
class Item:
    """What the model knows of a message."""

    body: bytes
    attempts: int
    is_on_disk: bool
    # Its record on disk is older than its attempts.
    has_been_out: bool = False


class MessageQueueAgainstLists(RuleBasedStateMachine):
    """`front` is what is in memory, kept or not; `back` is what is on disk alone, behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(message_queue, "KEEP_MAX_COUNT", KEEP_MAX_COUNT)
        self.patches.setattr(message_queue, "READ_MAX_RECORDS", READ_MAX_RECORDS)
        self.data_path = Path(tempfile.mkdtemp(prefix="message-queue-"))
        self.scheduler = FakeScheduler()
        self.front: list[Item] = []
        self.back: list[Item] = []
        self.out: dict[bytes, Message] = {}
        self.number = 0
        self.capacity = 0
        self.queue: MessageQueue

    @initialize(capacity=st.integers(0, 3))
    def open(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue = self._open(self.data_path)

    def _open(self, data_path: Path) -> MessageQueue:
        backend = DiskBackend("q", disk_settings(data_path), self.scheduler, lambda _error: None)
        return MessageQueue(self.capacity, backend)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self._drain()
            self.queue.backend.close()
        self.patches.undo()
        shutil.rmtree(self.data_path)

    def _drain(self) -> None:
        for _ in range(len(self.front) + len(self.back)):
            if self.front or self.back:
                self.take(2, 1000)
        assert self.queue.take(1, 1) is None

    def _make_batch(self, sizes: list[int]) -> Batch:
        bodies = []
        for size in sizes:
            self.number += 1
            bodies.append(b"%0*d" % (size, self.number))
        return Batch(self.scheduler.wall_ns, b"%013x" % self.number, 0, tuple(bodies))

    @property
    def _memory_count(self) -> int:
        return sum(not item.is_on_disk for item in self.front)

    @property
    def _kept_count(self) -> int:
        return len(self.front) - self._memory_count

    def _append_to_disk(self, items: list[Item]) -> None:
        is_caught_up = not self.back and self._kept_count < KEEP_MAX_COUNT
        (self.front if is_caught_up else self.back).extend(items)

    def _put(self, batch: Batch) -> None:
        items = [Item(body, 0, is_on_disk=False) for body in batch.bodies]
        room = 0 if self.back else max(self.capacity - self._memory_count, 0)
        rest = [Item(item.body, 0, is_on_disk=True) for item in items[room:]]
        if rest:
            is_caught_up = not self.back and self._kept_count < KEEP_MAX_COUNT
            self.front += items[:room]
            (self.front if is_caught_up else self.back).extend(rest)
        else:
            self.front += items

    @rule(number=st.integers(1, 3))
    def put_small_ones(self, number: int) -> None:
        self.put([1] * number)

    @rule(sizes=st.lists(st.integers(1, 900), min_size=1, max_size=5))
    def put(self, sizes: list[int]) -> None:
        batch = self._make_batch(sizes)
        self.queue.put(batch)
        self._put(batch)

    @rule(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4))
    def put_while_the_disk_is_full(self, sizes: list[int]) -> None:
        batch = self._make_batch(sizes)
        room = 0 if self.back else max(self.capacity - self._memory_count, 0)
        with _full_disk():
            if len(sizes) > room:
                with pytest.raises(OSError, match="No space"):
                    self.queue.put(batch)
            else:
                self.queue.put(batch)
                self._put(batch)

    @rule(max_count=st.integers(1, 5), max_bytes=st.sampled_from([1, 200, 1000]))
    def take(self, max_count: int, max_bytes: int) -> None:
        piece = self.queue.take(max_count, max_bytes)
        if piece is None:
            assert not self.front
            assert not self.back
            return
        batch, start, stop = piece.batch, piece.start, piece.stop
        loaded_count = len(self.back) - self.queue.backend.unread_count
        if loaded_count:
            # At most retries go before what comes from disk.
            assert all(item.has_been_out or not item.is_on_disk for item in self.front)
            assert 0 < loaded_count <= READ_MAX_RECORDS
            self.front += self.back[:loaded_count]
            del self.back[:loaded_count]
        items = self.front[: stop - start]
        del self.front[: stop - start]
        assert 1 <= len(items) <= max_count
        assert list(batch.bodies[start:stop]) == [item.body for item in items]
        assert list(batch.attempts(start, stop)) == [item.attempts + 1 for item in items]
        assert {item.is_on_disk for item in items} == {piece.is_on_disk}
        assert sum(len(item.body) for item in items[:-1]) < max_bytes
        assert piece.body_bytes == sum(len(item.body) for item in items)
        for item, message in zip(items, piece.messages(), strict=True):
            self.out[item.body] = (*message[:2], item.attempts + 1, *message[3:])

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        body = data.draw(st.sampled_from(sorted(self.out)))
        ordinal = self.out.pop(body)[4]
        if ordinal is not None:
            self.queue.commit([ordinal])

    @precondition(lambda self: self.out)
    @rule(data=st.data(), is_disk_full=st.booleans())
    def put_back(self, data: st.DataObject, is_disk_full: bool) -> None:  # noqa: FBT001 - drawn
        bodies = data.draw(st.lists(st.sampled_from(sorted(self.out)), min_size=1, unique=True))
        messages = [self.out.pop(body) for body in bodies]
        with _full_disk() if is_disk_full else _no_change():
            self._put_back(messages, is_disk_full=is_disk_full)

    def _put_back(self, messages: list[Message], *, is_disk_full: bool = False) -> None:
        self.queue.put_back(messages)
        for has_record in (True, False):
            group = [message for message in messages if (message[4] is not None) is has_record]
            items = [Item(message[3], message[2], has_record, has_record) for message in group]
            if not items:
                continue
            has_room = self.capacity and self._memory_count + len(items) <= self.capacity
            if has_room or is_disk_full:
                self.front += items
            else:
                self._append_to_disk([Item(item.body, item.attempts, True) for item in items])

    @rule()
    def sync(self) -> None:
        self.scheduler.advance(2)

    @rule()
    def take_and_put_back_one(self) -> None:
        self.take(1, 1)
        if self.out:
            self._put_back([self.out.popitem()[1]])

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        self.front.clear()
        self.back.clear()
        # What is out is not the queue's; its records are gone, and committing them is harmless.
        self.out = {body: (*message[:4], None) for body, message in self.out.items()}

    @rule()
    def restart(self) -> None:
        self.queue.flush(list(self.out.values()))
        self.queue.backend.close()
        kept = [item for item in self.front if item.is_on_disk and not item.has_been_out]
        rewritten = [item for item in self.front if not item.is_on_disk or item.has_been_out]
        for has_record in (True, False):
            for message in self.out.values():
                if (message[4] is not None) is has_record:
                    rewritten.append(Item(message[3], message[2], True))  # noqa: PERF401
        self.front = []
        self.back = [
            Item(item.body, item.attempts, is_on_disk=True)
            for item in [*kept, *self.back, *rewritten]
        ]
        self.out.clear()
        self.queue = self._open(self.data_path)

    @rule()
    def look_at_what_a_crash_would_leave(self) -> None:
        copy = self.data_path.with_name(f"{self.data_path.name}-copy")
        shutil.copytree(self.data_path, copy)
        try:
            queue = self._open(copy)
            found = set()
            while piece := queue.take(100, 1 << 20):
                found |= {message[3] for message in piece.messages()}
            queue.backend.close()
        finally:
            shutil.rmtree(copy)

        on_disk = {item.body for item in [*self.front, *self.back] if item.is_on_disk}
        on_disk |= {body for body, message in self.out.items() if message[4] is not None}
        assert on_disk <= found

    @invariant()
    def the_counts_are_exact(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.depth == len(self.front) + len(self.back)
            assert self.queue.backend_depth == self._kept_count + len(self.back)
            assert self.queue.backend.unread_count == len(self.back)
            sizes = [len(item.body) + RECORD_OVERHEAD_BYTES for item in [*self.front, *self.back]]
            assert self.queue.waiting_bytes == sum(sizes)

    @invariant()
    def memory_is_bounded(self) -> None:
        if hasattr(self, "queue") and not self.out:
            records = list(self.queue.iter_loaded())
            assert len(records) == len(self.front)


@contextmanager
def _full_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "pwrite", _refuse)
        yield


@contextmanager
def _no_change() -> Iterator[None]:
    yield


def _refuse(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


TestMessageQueueAgainstLists = MessageQueueAgainstLists.TestCase
TestMessageQueueAgainstLists.settings = settings(max_examples=100, stateful_step_count=30)
