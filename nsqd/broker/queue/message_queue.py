"""MessageQueue: a bounded memory of batches that overflows into a Backend.

There is one per topic and one per channel.

The queue is first in, first out: `_pieces` is always its front, the backend the rest. So a put goes
to memory only while nothing waits on disk behind it. What is appended to disk while the reader is
caught up stays in memory too, so a queue that keeps up never reads its files.

A piece is (batch, start, stop, ordinals): the messages start..stop of a batch, which may be shared
with other queues, and the ordinals of their records (indexed like the batch), None for messages
that are in memory only. They are a range if the messages have not been out since they were written.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import TypeAlias

from nsqd.broker.queue.backend import Backend
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, Batch, Message, StoredBatch

AnyBatch: TypeAlias = Batch | StoredBatch
Piece: TypeAlias = tuple[AnyBatch, int, int, Sequence[int] | None]

READ_MAX_RECORDS = 1024
READ_MAX_BYTES = 256 * 1024
# How much of what has been appended to disk is kept in memory for a reader that is caught up.
KEEP_MAX_COUNT = 4096
KEEP_MAX_BYTES = 1024 * 1024
# How many records on disk may stand behind one that is not finished: its files can't be deleted,
# and a crash would bring them all back. Of 1 KB each this is a file of the default size.
OUTSTANDING_MAX_COUNT = 100_000
_NO_TIMES: Mapping[bytes, int] = {}


class MessageQueue:
    """Messages in the order in which they came, at most `capacity` of them in memory only."""

    __slots__ = (
        "_backend",
        "_capacity",
        "_kept_bytes",
        "_kept_count",
        "_loaded_bytes",
        "_memory_count",
        "_pieces",
        "_straight_count",
        "_unread_count",
    )

    def __init__(self, capacity: int, backend: Backend) -> None:
        self._capacity = capacity
        self._backend = backend
        self._pieces: deque[Piece] = deque()
        self._memory_count = 0  # messages of the pieces without ordinals
        self._kept_count = 0  # messages of the pieces with ordinals: on disk as well
        self._kept_bytes = 0
        # Bodies of all pieces; None until somebody asks, so that nobody else pays for it.
        self._loaded_bytes: int | None = None
        self._straight_count = 0  # those of them that have not been out since they were written
        self._unread_count = backend.unread_count  # looked up whenever the backend was used

    @property
    def backend(self) -> Backend:
        """Where the rest is."""
        return self._backend

    @property
    def depth(self) -> int:
        """How many messages wait here."""
        return self._memory_count + self._kept_count + self._unread_count

    @property
    def backend_depth(self) -> int:
        """How many of them are on disk."""
        return self._kept_count + self._unread_count

    @property
    def waiting_bytes(self) -> int:
        """How large the messages that wait here are or would be on disk."""
        if self._loaded_bytes is None:
            self._loaded_bytes = sum(_body_bytes(*piece[:3]) for piece in self._pieces)
        loaded_count = self._memory_count + self._kept_count
        overhead_bytes = loaded_count * RECORD_OVERHEAD_BYTES
        return self._loaded_bytes + overhead_bytes + self._backend.unread_bytes

    def put(self, batch: AnyBatch, *, is_stored: bool = False) -> None:
        """Append a batch, as much of it as there is room to memory, the rest to the backend.

        Args:
            is_stored: it comes from another queue's disk, and is as safe here as it was there.

        Raises:
            OSError: the backend failed, and none of the batch is here.
        """
        count = len(batch.bodies)
        room = 0 if self._unread_count or is_stored else self._capacity - self._memory_count
        if count <= room:
            self._pieces.append((batch, 0, count, None))
            self._memory_count += count
            if self._loaded_bytes is not None:
                self._loaded_bytes += batch.body_bytes
            return
        room = max(room, 0)
        kept = self._append(batch, room, count)
        if room:
            self._pieces.append((batch, 0, room, None))
            self._memory_count += room
            if self._loaded_bytes is not None:
                self._loaded_bytes += _body_bytes(batch, 0, room)
        if kept is not None:
            self._keep(kept, batch.body_bytes)

    def undo_put(self, batch: AnyBatch) -> None:
        """Take back the last put, of which nothing has been taken and nobody been told yet."""
        stored_count = len(batch.bodies)
        while self._pieces and self._pieces[-1][0] is batch:
            _, start, stop, ordinals = self._pieces.pop()
            if self._loaded_bytes is not None:
                self._loaded_bytes -= _body_bytes(batch, start, stop)
            if ordinals is None:
                self._memory_count -= stop - start
                stored_count -= stop - start
            else:
                self._kept_count -= stop - start
                self._straight_count -= stop - start
                self._kept_bytes -= batch.body_bytes
        self._undo_append(batch, len(batch.bodies) - stored_count)

    def put_aside(self, batch: AnyBatch, due_ns: int, *, is_stored: bool) -> list[Message]:
        """Take messages that are not to be delivered yet; return those the caller has to keep.

        Without a memory queue, or if they come from another queue's disk, they are on disk then;
        and if more waits there before them, only there: `take` gives them out as deferred ones.

        Raises:
            OSError: the backend failed, and none of the batch is here.
        """
        count = len(batch.bodies)
        if self._capacity and not is_stored:
            return batch.messages(0, count)
        is_caught_up = not self._unread_count
        first = self._append_deferred(batch, 0, due_ns, keep=is_caught_up)
        self._unread_count = self._backend.unread_count
        if first is None:
            return []
        messages = batch.messages(0, count)
        return [(*message[:4], first + index) for index, message in enumerate(messages)]

    def undo_put_aside(self, batch: AnyBatch) -> None:
        """Take back the last `put_aside` of a publish."""
        if not self._capacity:
            for message_id in batch.ids(0, len(batch.bodies)):
                self._backend.take_due_time(message_id)
            self._undo_append(batch, 0)

    def note_due(self, message_id: bytes, due_ns: int) -> None:
        """Remember when a message is due that is on disk and out."""
        self._backend.note_due([message_id], due_ns, are_unread=False)

    def count_deferred(self, now_ns: int) -> int:
        """How many of those on disk are not to be delivered yet."""
        count = 0
        if self._backend.due_times:
            # A crash, or a publish that was taken back, can leave due times without a record.
            count = sum(due_ns > now_ns for due_ns in self._backend.due_times.values())
            count = min(count, self._unread_count)
        if self._kept_count:
            count += sum(
                stop - start
                for batch, start, stop, _ in self._pieces
                if batch.is_deferred and batch.due_ns > now_ns
            )
        return count

    def put_back(self, messages: Sequence[Message]) -> None:
        """Append messages that have been out already: timed out, requeued, or due at last.

        With room in memory they queue up behind what is in memory, even if more waits on disk:
        a retry should not have to wait for the whole backlog. Without a memory queue each is
        written again with its attempts, and its old record is forgotten; so it is if too many
        records stand behind the old one. It never fails: what the disk refuses stays in memory.
        """
        for batch in _gather(messages):
            count = len(batch.bodies)
            has_room = self._capacity and self._memory_count + count <= self._capacity
            if has_room and (batch.ordinals is None or not self._is_held_up):
                self._put_back_in_memory(batch)
                continue
            try:
                kept = self._append(batch, 0, count)
            except OSError:
                self._put_back_in_memory(batch)  # the backend has told the broker's health
                continue
            if batch.ordinals is not None:
                self._backend.commit(batch.ordinals)
            if kept is not None:
                self._keep(kept, batch.body_bytes)

    def take(self, max_count: int, max_bytes: int) -> Piece | None:
        """Take messages of one batch from the front: at least one, or None if there is none."""
        if not self._pieces and not self._load():
            return None
        piece = batch, start, stop, ordinals = self._pieces.popleft()
        if self._unread_count and not self._straight_count and isinstance(batch, StoredBatch):
            # A retry went before the backlog, which goes before the next one: else retries could go
            # round in memory for ever. A disk that can't be read is heard of when memory is empty.
            with contextlib.suppress(OSError):
                self._load()
        count = stop - start
        if count > max_count or batch.body_bytes > max_bytes:
            count = _fitting(batch, start, min(count, max_count), max_bytes)
            if start + count < stop:
                self._pieces.appendleft((batch, start + count, stop, ordinals))
                piece = (batch, start, start + count, ordinals)
        if self._loaded_bytes is not None:
            self._loaded_bytes -= _body_bytes(batch, start, start + count)
        if ordinals is None:
            self._memory_count -= count
        else:
            self._kept_count -= count
            if not self._kept_count:
                self._kept_bytes = 0
            if isinstance(ordinals, range):
                self._straight_count -= count
        return piece

    def iter_loaded(
        self, *, in_memory: bool = True, on_disk: bool = True
    ) -> Iterator[tuple[Message, bool]]:
        """Give what is in memory from the front, and whether it is on disk too; take nothing.

        What is in memory only, or on disk too, can be left out; no message of it is looked at, as
        there may be millions.
        """
        if not (in_memory and self._memory_count) and not (on_disk and self._kept_count):
            return
        for batch, start, stop, ordinals in self._pieces:
            is_on_disk = ordinals is not None
            if on_disk if is_on_disk else in_memory:
                for index in range(start, stop):
                    [message] = batch.messages(index, index + 1)
                    yield message, is_on_disk

    def untake(self, piece: Piece) -> None:
        """Put back at the front what has been taken and could not be used."""
        batch, start, stop, ordinals = piece
        self._pieces.appendleft(piece)
        if self._loaded_bytes is not None:
            self._loaded_bytes += _body_bytes(batch, start, stop)
        if ordinals is None:
            self._memory_count += stop - start
        else:
            self._kept_count += stop - start
            if isinstance(ordinals, range):
                self._straight_count += stop - start

    def commit(self, ordinals: Iterable[int]) -> None:
        """The messages of these records are finished for good."""
        self._backend.commit(ordinals)

    def empty(self) -> None:
        """Drop everything."""
        self._forget_memory()
        try:
            self._backend.empty()
        finally:
            self._unread_count = self._backend.unread_count

    def flush(
        self, messages: Sequence[Message], due_times: Mapping[bytes, int] = _NO_TIMES
    ) -> None:
        """Write what is in memory only, and these messages, to the backend, before a close.

        Args:
            due_times: when those of the messages are due that are deferred, in steady time.

        Raises:
            OSError: not everything is on disk.
        """
        due_times = {**self._backend.due_times, **due_times}
        for batch, start, stop, _ in self._pieces:
            if batch.is_deferred:
                due_times |= dict.fromkeys(batch.ids(start, stop), batch.due_ns)
        # The record of what was deferred at once and never delivered stands as it is.
        changed = [message for message in messages if message[4] is None or message[2]]
        out = [(stored, 0, len(stored.bodies), stored.ordinals) for stored in _gather(changed)]
        refused: OSError | None = None
        for batch, start, stop, ordinals in (*self._pieces, *out):
            if isinstance(ordinals, range):
                continue  # never taken: its records stand on disk as they are
            try:
                self._backend.append(*batch.records(start, stop), keep=False)
            except OSError as error:
                if ordinals is None:
                    refused = error
                continue  # what has records keeps them, if with the attempts of before
            if ordinals is not None:
                # It came back, so its attempts have grown; and records before which everything is
                # finished would bring back what was finished behind them.
                self._backend.commit(ordinals[start:stop])
        self._backend.replace_due_times(due_times)
        if refused is not None:
            raise refused
        self._forget_memory()
        self._unread_count = self._backend.unread_count

    def _forget_memory(self) -> None:
        self._pieces.clear()
        self._memory_count = self._kept_count = self._kept_bytes = self._straight_count = 0
        self._loaded_bytes = None

    @property
    def _is_held_up(self) -> bool:
        """Whether a record that is not finished has too many behind it."""
        return self._backend.outstanding_count > OUTSTANDING_MAX_COUNT

    def _append(self, batch: AnyBatch, start: int, stop: int) -> Piece | None:
        """Append to disk; return the piece to keep in memory too, if the reader is caught up."""
        is_caught_up = (
            not self._unread_count
            and self._kept_count < KEEP_MAX_COUNT
            and self._kept_bytes < KEEP_MAX_BYTES
        )
        if batch.is_deferred:  # in a topic's queue, whose channels will keep it back
            first = self._append_deferred(batch, start, batch.due_ns, keep=is_caught_up)
        else:
            data, lengths = batch.records(start, stop)
            first = self._backend.append(data, lengths, keep=is_caught_up)
        self._unread_count = self._backend.unread_count
        if first is None:
            return None
        return batch, start, stop, range(first - start, first + stop - start)

    def _append_deferred(
        self, batch: AnyBatch, start: int, due_ns: int, *, keep: bool
    ) -> int | None:
        """Append to disk from `start` on. The due time comes first, or a crash brings it early."""
        stop = len(batch.bodies)
        ids = batch.ids(start, stop)
        self._backend.note_due(ids, due_ns, are_unread=not keep)
        try:
            return self._backend.append(*batch.records(start, stop), keep=keep)
        except OSError:
            for message_id in ids:
                self._backend.take_due_time(message_id)
            raise

    def _undo_append(self, batch: AnyBatch, start: int) -> None:
        """Take back what was appended of a batch from `start` on."""
        if start < len(batch.bodies):
            _, lengths = batch.records(start, len(batch.bodies))
            self._backend.undo_append(lengths)
            self._unread_count = self._backend.unread_count

    def _keep(self, piece: Piece, body_bytes: int) -> None:
        batch, start, stop, _ = piece
        self._pieces.append(piece)
        if self._loaded_bytes is not None:
            self._loaded_bytes += _body_bytes(batch, start, stop)
        self._kept_count += stop - start
        self._kept_bytes += body_bytes
        self._straight_count += stop - start

    def _put_back_in_memory(self, batch: StoredBatch) -> None:
        count = len(batch.bodies)
        self._pieces.append((batch, 0, count, batch.ordinals))
        if self._loaded_bytes is not None:
            self._loaded_bytes += batch.body_bytes
        if batch.ordinals is None:
            self._memory_count += count
        else:
            self._kept_count += count
            self._kept_bytes += batch.body_bytes

    def _load(self) -> bool:
        if not self._unread_count:
            return False
        batch = self._backend.read(READ_MAX_RECORDS, READ_MAX_BYTES)
        self._unread_count = self._backend.unread_count
        if batch is None:
            return False
        for part in self._split_by_due_time(batch) if self._backend.due_times else (batch,):
            self._keep((part, 0, len(part.bodies), part.ordinals), part.body_bytes)
        return True

    def _split_by_due_time(self, batch: StoredBatch) -> Iterator[StoredBatch]:
        due_times = map(self._backend.take_due_time, batch.ids(0, len(batch.bodies)))
        start = 0
        for due_ns, group in groupby(list(due_times)):
            stop = start + len(list(group))
            yield batch.due_part(start, stop, due_ns)
            start = stop


def _gather(messages: Sequence[Message]) -> list[StoredBatch]:
    """Batch messages up, those with a record on disk apart from those without."""
    on_disk = [message for message in messages if message[4] is not None]
    in_memory = [message for message in messages if message[4] is None]
    return [StoredBatch.from_messages(part) for part in (on_disk, in_memory) if part]


def _body_bytes(batch: AnyBatch, start: int, stop: int) -> int:
    if stop - start == len(batch.bodies):
        return batch.body_bytes
    return sum(map(len, batch.bodies[start:stop]))


def _fitting(batch: AnyBatch, start: int, max_count: int, max_bytes: int) -> int:
    """How many messages from `start` on fit, at least one."""
    if batch.body_bytes <= max_bytes:
        return max_count
    totals = accumulate(map(len, batch.bodies[start : start + max_count]))
    fitting = 0
    for fitting, total in enumerate(totals, start=1):  # noqa: B007 - the count is what is wanted
        if total >= max_bytes:
            break
    return fitting
