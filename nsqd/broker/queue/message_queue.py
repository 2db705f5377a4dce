"""MessageQueue: the messages that wait, in memory as far as there is room, the rest on disk.

A topic has one queue for the messages that no channel has yet, and each channel has one. A message
that waits is in one of two places, and the first is always the front of the queue:

    in memory           `Memory`, at most `capacity` messages without a record on disk
    on disk only        the unread records of the backend, behind all of `Memory`

So a put goes to memory only while the backend has no unread record. Messages that are written while
it has none stay in memory as well (*kept*): a queue that keeps up never reads its files.

The queue owns a message until `take`. The caller of `take` owns it from then on and ends that in
one of three ways: `commit` (finished), `put_back` (delivered in vain, with one more attempt), or
`untake` (never used). A record on disk stays until `commit`, so that a crash brings it again.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice

from nsqd.broker.errors import SlowDiskError
from nsqd.broker.queue.backend import Backend
from nsqd.broker.queue.batch import RECORD_OVERHEAD_BYTES, AnyBatch, Message, Origin, Piece
from nsqd.broker.queue.memory import Memory
from nsqd.broker.queue.pending_put import Part, PendingPut
from nsqd.broker.queue.receipt import Receipt

READ_MAX_RECORDS = 1024
READ_MAX_BYTES = 256 * 1024
# How many of the records that are appended to disk stay in memory as well (kept).
KEEP_MAX_COUNT = 4096
KEEP_MAX_BYTES = 1024 * 1024
# How many records on disk may stand behind one that is not finished: its files can't be deleted,
# and a crash would bring them all back. Of 1 KB each this is a file of the default size.
OUTSTANDING_MAX_COUNT = 100_000
# How many pieces a look at the queue passes over at most: 2 ms.
MAX_PASSED_PIECES = 50_000
_NO_TIMES: Mapping[bytes, int] = {}
# Python 3.11 calls a function for each `Origin.MEMORY`: 0.3 us, several times a delivery.
_MEMORY, _WRITTEN, _RETURNED = Origin.MEMORY, Origin.WRITTEN, Origin.RETURNED


class MessageQueue:
    """Messages in the order in which they came, at most `capacity` of them in memory only."""

    __slots__ = ("_capacity", "_unread_count", "backend", "memory")

    def __init__(self, capacity: int, backend: Backend) -> None:
        self._capacity = capacity
        self.backend = backend  # the disk behind memory
        self.memory = Memory()  # changed by this queue only
        # A copy of the backend's, made after each use of it: it is asked for at each delivery.
        self._unread_count = backend.unread_count

    @property
    def depth(self) -> int:
        """How many messages wait here."""
        return self.memory.count + self.memory.kept_count + self._unread_count

    @property
    def backend_depth(self) -> int:
        """How many of the waiting messages are on disk."""
        return self.memory.kept_count + self._unread_count

    @property
    def waiting_bytes(self) -> int:
        """How large the messages that wait here are or would be on disk."""
        overhead_bytes = (self.memory.count + self.memory.kept_count) * RECORD_OVERHEAD_BYTES
        return (
            self.memory.size_bytes
            + self.memory.kept_bytes
            + overhead_bytes
            + self.backend.unread_bytes
        )

    def find_front_timestamp(self, now_ns: int) -> int | None:
        """Return when the message was published that is delivered next, None if there is none.

        Messages that are not due are passed over, up to `MAX_PASSED_PIECES` of them.

        Args:
            now_ns: the time by which they are due.
        """
        for piece in islice(self.memory.pieces, MAX_PASSED_PIECES):
            if piece.batch.due_ns <= now_ns:
                [timestamp_ns] = piece.batch.timestamps(piece.start, piece.start + 1)
                return timestamp_ns
        return self.backend.front.find_timestamp(now_ns)

    @property
    def room_count(self) -> int:
        """How many messages can be put into memory now."""
        return 0 if self._unread_count else max(self._capacity - self.memory.count, 0)

    def put(self, batch: AnyBatch, *, is_stored: bool = False) -> None:
        """Append a batch: to memory as far as there is room, the rest to the backend.

        Args:
            is_stored: it comes from the disk of another queue, so it goes to the disk of this one.

        Raises:
            SlowDiskError: a thread has to write them: see `plan_put`.
            OSError: the backend failed, and no message of the batch is here.
        """
        count = len(batch.bodies)
        room = 0 if self._unread_count or is_stored else self._capacity - self.memory.count
        if count <= room:
            self.memory.enter_published(batch, count)
            return
        aside = self.backend.aside
        if aside is not None and aside.is_needed and not batch.is_deferred:
            raise SlowDiskError
        room = max(room, 0)
        kept = self._append(batch, room)
        if room:
            self.memory.enter(Piece(batch, 0, room, _MEMORY))
        if kept is not None:
            self.memory.enter(kept)

    def plan_put(self, parts: Sequence[Part], *, is_stored: bool = False) -> PendingPut:
        """Begin a put of messages that are not deferred; `complete_put` lets them appear.

        Until then no other put may be begun. Takes, commits and `put_back` go on.

        Args:
            is_stored: as for `put`.

        Raises:
            OSError: the process has no descriptors left.
        """
        memory_count = room = 0 if is_stored else self.room_count
        chunks = []
        for part in parts:
            count = len(part.batch.bodies)
            if room < count:
                chunks.append(part.encode().since(room))
            room = max(room - count, 0)
        aside = self.backend.aside
        job = aside.prepare(chunks) if chunks and aside is not None else None
        return PendingPut(parts, memory_count, aside, job)

    def complete_put(self, put: PendingPut) -> None:
        """Let messages appear whose records, if they need any, have been written.

        The job was not cancelled. Those with records are kept in memory as well, as far as that may
        be, if no unread record stands before them.
        """
        aside = self.backend.aside
        is_kept = put.job is not None and not self.backend.unread_count
        if put.job is not None and aside is not None:
            is_appended = aside.end(put.job)
            assert is_appended, "the job was cancelled"
        room = put.memory_count
        for part in put.parts:
            batch = part.batch
            count = len(batch.bodies)
            start = min(room, count)
            room -= start
            if start:
                self.memory.enter(Piece(batch, 0, start, _MEMORY))
            if start == count:
                continue
            is_kept = (
                is_kept
                and self.memory.kept_count < KEEP_MAX_COUNT
                and self.memory.kept_bytes < KEEP_MAX_BYTES
            )
            if not is_kept or aside is None:
                break
            first = aside.advance(part.encode().lengths[start:])
            ordinals = range(first - start, first - start + count)
            self.memory.enter(Piece(batch, start, count, _WRITTEN, ordinals))
        self._unread_count = self.backend.unread_count

    def undo_put(self, batch: AnyBatch) -> None:
        """Undo the last put, which has not been acknowledged and of which nothing was taken."""
        written_from = 0
        while self.memory.pieces and self.memory.pieces[-1].batch is batch:
            piece = self.memory.pieces.pop()
            self.memory.leave(piece)
            if not piece.is_on_disk:
                written_from = piece.stop
        self._undo_append(batch, written_from)

    def put_aside(self, batch: AnyBatch, due_ns: int, *, is_stored: bool) -> list[Message]:
        """Accept deferred messages; return those that the caller has to hold until they are due.

        Without a memory queue, or if they come from the disk of another queue, they are written to
        disk. If unread records stand before them there, none is returned: `take` gives them out,
        as pieces of a deferred batch.

        Raises:
            OSError: the backend failed, and no message of the batch is here.
        """
        count = len(batch.bodies)
        if self._capacity and not is_stored:
            return batch.messages(0, count)
        is_caught_up = not self._unread_count
        first = self._append_deferred(batch, 0, due_ns, keep=is_caught_up)
        self._unread_count = self.backend.unread_count
        if first is None:
            return []
        return Piece(batch, 0, count, _WRITTEN, range(first, first + count)).messages()

    def undo_put_aside(self, batch: AnyBatch) -> None:
        """Undo the last `put_aside` of a publish."""
        if not self._capacity:
            for message_id in batch.ids(0, len(batch.bodies)):
                self.backend.pop_due_time(message_id)
            self._undo_append(batch, 0)

    def count_deferred(self, now_ns: int) -> int:
        """Return how many of the messages on disk are not to be delivered yet."""
        # A crash, or a publish that was undone, can leave due times without a record.
        count = min(self.backend.count_early(now_ns), self._unread_count)
        for piece in self.memory.deferred:
            if piece.batch.due_ns > now_ns:
                count += piece.count
        return count

    def put_back(self, messages: Sequence[Message]) -> None:
        """Append messages that were delivered before: timed out, requeued, or due at last.

        With room in memory they go behind the other pieces, even if unread records wait on disk: a
        retry should not have to wait for the whole backlog. Without a memory queue each is written
        again with its attempts, and its old record is committed; likewise if too many records stand
        behind the old one. It never fails and never waits: messages that the disk refuses, or that
        come while it is slow or a thread writes to it, stay in memory.
        """
        # Too many records stand behind one that is not finished.
        has_long_tail = self.backend.outstanding_count > OUTSTANDING_MAX_COUNT
        is_stalled = self.backend.aside is not None and self.backend.aside.is_stalled
        for piece in _gather(messages):
            has_room = self._capacity and self.memory.count + piece.count <= self._capacity
            if is_stalled or (has_room and not (piece.is_on_disk and has_long_tail)):
                self.memory.enter(piece)
                continue
            try:
                kept = self._append(piece.batch, 0)
            except OSError:  # the backend has reported the error to the broker's health
                self.memory.enter(piece)
                continue
            if piece.is_on_disk:
                self.backend.commit(piece.ordinals)
            if kept is not None:
                self.memory.enter(kept)

    def take(self, max_count: int, max_bytes: int) -> Piece | None:
        """Remove messages of one batch from the front: at least one, or None if the queue is empty.

        Raises:
            OSError: memory is empty and the disk can't be read.
        """
        memory = self.memory
        if not memory.pieces and not self._load():
            return None
        piece = memory.pieces[0]
        count = whole_count = piece.stop - piece.start
        if count > max_count:
            count = max_count
        if piece.body_bytes > max_bytes:
            count = piece.count_fitting(count, max_bytes)
        if count < whole_count:
            piece = memory.cut_front(count)
        else:
            if memory.copy is not None:
                memory.copy.note_leaving()
            memory.pieces.popleft()
            memory.leave(piece)
        if self._unread_count and piece.origin is _RETURNED and not memory.written_count:
            # A retry went before the backlog; the backlog goes before the next retry, or retries
            # could circle in memory for ever. An error of the disk is raised once memory is empty.
            with contextlib.suppress(OSError):
                self._load()
        return piece

    def untake(self, piece: Piece) -> None:
        """Put a piece that was taken and not used back at the front."""
        self.memory.enter(piece, at_front=True)

    def iter_loaded(
        self, *, in_memory: bool = True, on_disk: bool = True, is_backward: bool = False
    ) -> Iterator[tuple[Message, bool]]:
        """Give the messages in memory from the front on, and whether each is on disk too.

        Args:
            in_memory, on_disk: whether those without and those with a record are wanted. The others
                are passed over piece by piece, and the look ends after `MAX_PASSED_PIECES`.
            is_backward: from the back on.
        """
        if not (in_memory and self.memory.count) and not (on_disk and self.memory.kept_count):
            return
        passed_count = 0
        pieces = self.memory.pieces
        for piece in reversed(pieces) if is_backward else pieces:
            is_on_disk = piece.is_on_disk
            if on_disk if is_on_disk else in_memory:
                indexes = range(piece.start, piece.stop)
                for index in reversed(indexes) if is_backward else indexes:
                    [message] = piece.batch.messages(index, index + 1)
                    yield message, is_on_disk
            else:
                passed_count += 1
                if passed_count >= MAX_PASSED_PIECES:
                    return

    def commit(self, ordinals: Iterable[int]) -> None:
        """Forget these records: their messages are finished."""
        self.backend.commit(ordinals)

    def empty(self) -> tuple[deque[Piece], Receipt]:
        """Drop all messages.

        Return the pieces, which have to be disposed of, and the receipt that is done when no crash
        brings the messages back.
        """
        pieces = self.memory.clear()
        receipt = self.backend.empty()
        self._unread_count = self.backend.unread_count
        return pieces, receipt

    def delete(self) -> tuple[deque[Piece], Receipt]:
        """Drop all messages and remove the files, as `empty` does."""
        pieces = self.memory.clear()
        receipt = self.backend.delete()
        self._unread_count = self.backend.unread_count
        return pieces, receipt

    def flush(
        self, messages: Sequence[Message], due_times: Mapping[bytes, int] = _NO_TIMES
    ) -> None:
        """Write the messages without an exact record to the backend, before a close.

        Args:
            messages: those in flight and deferred, which are written as well.
            due_times: when the deferred ones are due, in steady time.

        Raises:
            OSError: not everything is on disk.
        """
        due_times = {**self.backend.due_times, **due_times}
        for piece in self.memory.pieces:
            batch = piece.batch
            if batch.is_deferred:
                due_times |= dict.fromkeys(batch.ids(piece.start, piece.stop), batch.due_ns)
        # The record of a message that was deferred at once and never delivered is exact.
        changed = [message for message in messages if message[4] is None or message[2]]
        refused: OSError | None = None
        for piece in (*self.memory.pieces, *_gather(changed)):
            if piece.origin is _WRITTEN:
                continue
            try:
                self.backend.append(*piece.batch.records(piece.start, piece.stop), keep=False)
            except OSError as error:
                if not piece.is_on_disk:
                    refused = error
                continue  # old records stay, though with too few attempts
            if piece.is_on_disk:
                # Old records that stayed unfinished would come back beside the new ones, and bring
                # back the finished records that stand behind them.
                self.backend.commit(piece.ordinals)
        self.backend.replace_due_times(due_times)
        if refused is not None:
            raise refused
        self.memory.clear()
        self._unread_count = self.backend.unread_count

    def _append(self, batch: AnyBatch, start: int) -> Piece | None:
        """Append to disk from `start` on; return the piece to keep in memory, if it is to be kept.

        Raises:
            OSError: nothing was appended.
        """
        stop = len(batch.bodies)
        is_caught_up = (
            not self._unread_count
            and self.memory.kept_count < KEEP_MAX_COUNT
            and self.memory.kept_bytes < KEEP_MAX_BYTES
        )
        if batch.is_deferred:  # in the queue of a topic, whose channels will defer it
            first = self._append_deferred(batch, start, batch.due_ns, keep=is_caught_up)
        else:
            data, lengths = batch.records(start, stop)
            first = self.backend.append(data, lengths, keep=is_caught_up)
        self._unread_count = self.backend.unread_count
        if first is None:
            return None
        return Piece(batch, start, stop, _WRITTEN, range(first - start, first - start + stop))

    def _append_deferred(
        self, batch: AnyBatch, start: int, due_ns: int, *, keep: bool
    ) -> int | None:
        """Append to disk from `start` on; return the ordinal of the first record that is kept.

        The due time is written first: a crash in between would deliver the messages early.

        Raises:
            OSError: nothing was appended.
        """
        stop = len(batch.bodies)
        ids = batch.ids(start, stop)
        self.backend.note_due(ids, due_ns, are_unread=not keep)
        try:
            return self.backend.append(*batch.records(start, stop), keep=keep)
        except OSError:
            for message_id in ids:
                self.backend.pop_due_time(message_id)
            raise

    def _undo_append(self, batch: AnyBatch, start: int) -> None:
        """Undo the append of a batch from `start` on, if there was one."""
        if start < len(batch.bodies):
            _, lengths = batch.records(start, len(batch.bodies))
            self.backend.undo_append(lengths)
            self._unread_count = self.backend.unread_count

    def _load(self) -> bool:
        """Read records into memory, behind the other pieces; False if there are none.

        Raises:
            OSError: the disk can't be read.
        """
        if not self._unread_count:
            return False
        piece = self.backend.read(READ_MAX_RECORDS, READ_MAX_BYTES)
        self._unread_count = self.backend.unread_count
        if piece is None:
            return False
        if not self.backend.due_times:
            self.memory.enter(piece)
            return True
        ids = piece.batch.ids(piece.start, piece.stop)
        for part in _split_by_due_time(piece, map(self.backend.pop_due_time, ids)):
            self.memory.enter(part)
        return True


def _split_by_due_time(piece: Piece, due_times: Iterable[int]) -> Iterator[Piece]:
    """Cut up a piece that was read so that the messages of each part are due together.

    Args:
        due_times: one for each message, 0 for a message that was never deferred.
    """
    groups = [(due_ns, len(list(group))) for due_ns, group in groupby(due_times)]
    for due_ns, count in groups:
        part, piece = piece.split(count) if count < piece.count else (piece, piece)
        yield part.with_due_time(due_ns) if due_ns else part


def _gather(messages: Sequence[Message]) -> list[Piece]:
    """Gather messages that were delivered before, those with a record apart from those without."""
    on_disk = [message for message in messages if message[4] is not None]
    in_memory = [message for message in messages if message[4] is None]
    return [Piece.from_messages(part, _RETURNED) for part in (on_disk, in_memory) if part]
