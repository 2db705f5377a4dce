"""TopicWriter: the messages of one topic, into files, finished after they are certain.

Group commit: while one group of messages is being synced, the next is written. One task owns the
files, and does one thing at a time: write a batch, rotate, begin a sync, note that one has ended.

    batch -> written -> unsynced -> (sync) -> finished
                            `--- a write or a sync fails: cut back, requeued, tried again later

A sync begins when half of what an nsqd may send is here, at the latest after the sync interval, and
at each end of a file. What a sync covers was written, and its gzip member ended, before it began.
"""

from __future__ import annotations

import asyncio
import enum
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nsqd.cli.output import CliError
from nsqd.cli.sinks.budget import ByteBudget
from nsqd.cli.sinks.files.folders import Folders
from nsqd.cli.sinks.files.leftovers import adopt
from nsqd.cli.sinks.files.names import FileNames
from nsqd.cli.sinks.files.output_file import OutputFile
from nsqd.client import Batch, Consumer, Message

_T = TypeVar("_T")

# A sync begins when so much of an nsqd's RDY is in flight: the rest is written meanwhile.
_GROUP_SHARE: Final = 0.5
_BATCH_COUNT: Final = 2500
_MIN_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class FilePlan:
    """How files are written."""

    sync_interval_s: float = 1.0
    rotate_bytes: int = 0  # before compression; 0 for any size
    rotate_interval_s: float = 0.0
    skips_empty: bool = False
    exits_on_full_disk: bool = False


@dataclass(slots=True)
class FileReport:
    """Counts over all topics, and the listener to events."""

    note: Callable[[str], None]
    # Called with the path of a file that is closed, synced, and where it belongs.
    on_file: Callable[[str], None]
    messages: int = 0
    body_bytes: int = 0
    files: int = 0
    syncs: int = 0


class _Event(enum.Enum):
    ARRIVED = enum.auto()  # messages are in `_arrived`
    TICK = enum.auto()
    DUE = enum.auto()  # the oldest message has waited for its sync as long as it may
    CLOSE = enum.auto()
    SYNCED = enum.auto()
    RETRY = enum.auto()
    END = enum.auto()


class TopicWriter:
    """The files of one topic; `run` ends when the consumer is closed."""

    def __init__(
        self,
        consumer: Consumer,
        names: FileNames,
        folders: Folders,
        plan: FilePlan,
        report: FileReport,
        budget: ByteBudget,
        executor: Executor,
    ) -> None:
        """Args: executor: runs the calls that may block."""
        self._consumer = consumer
        self._names = names
        self._folders = folders
        self._plan = plan
        self._report = report
        self._budget = budget
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._arrived: list[Message] = []  # bounded by RDY
        self._file: OutputFile | None = None
        # The name of the last file, <REV> in it, and its revision.
        self._name = ""
        self._rev = 0
        self._opened_at = 0.0
        self._unsynced: list[Message] = []
        self._sync_due_at = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._being_synced: list[Message] = []
        # Files whose move has failed: tried again with each tick.
        self._unmoved: list[tuple[str, str, int]] = []
        self._pause_s = 0.0
        self._retry: asyncio.TimerHandle | None = None

    def close_file(self) -> None:
        """Close the file, as after SIGHUP; the next message opens one."""
        self._events.put_nowait(_Event.CLOSE)

    async def run(self) -> None:
        """Write the messages of the consumer, until it is closed.

        Raises:
            CliError: the disk is full, and that is to end it.
            NsqError: no nsqd lets this consumer in.
        """
        await self._adopt()
        reading = self._loop.create_task(self._read())
        ticking = self._loop.create_task(self._tick())
        try:
            while (event := await self._events.get()) is not _Event.END:
                await self._handle(event)
                if self._wants_sync():
                    await self._guard(self._begin_sync())
            await self._guard(self._close())
            await reading
        finally:
            reading.cancel()
            ticking.cancel()
            for timer in (self._retry, self._due):
                if timer is not None:
                    timer.cancel()
            await asyncio.gather(reading, ticking, return_exceptions=True)
            if self._syncing is not None:
                await asyncio.wait([self._syncing])

    # Where events come from.

    async def _read(self) -> None:
        try:
            async for batch in self._consumer.batches(_BATCH_COUNT, 0.0):
                if not self._arrived:
                    self._events.put_nowait(_Event.ARRIVED)
                self._arrived += batch
        finally:
            self._events.put_nowait(_Event.END)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._plan.sync_interval_s)
            self._events.put_nowait(_Event.TICK)

    # What is done then.

    async def _handle(self, event: _Event) -> None:
        if event is _Event.ARRIVED:
            messages, self._arrived = self._arrived, []
            self._budget.note(messages)
            if self._retry is not None:
                Batch(messages).req(0, backoff=False)  # The disk is full.
            else:
                await self._guard(self._write(messages))
        elif event is _Event.SYNCED:
            await self._guard(self._end_sync())
        elif event is _Event.CLOSE:
            await self._guard(self._close())
        elif event is _Event.RETRY:
            self._retry = None
            self._budget.restart()
        elif event is _Event.TICK and self._retry is None:
            await self._guard(self._look_at_clock())

    async def _write(self, messages: list[Message]) -> None:
        """Write messages, into as many files as the rotation wants."""
        try:
            while messages:
                if self._needs_rotation():
                    await self._open_next()
                assert self._file is not None
                count = self._count_until_rotation(messages)
                group, messages = messages[:count], messages[count:]
                if not self._unsynced:
                    self._set_due(group[0])
                # Noted before: a write that fails may have written a part of them.
                self._unsynced += group
                await self._in_thread(self._file.write, [message.body for message in group])
        except OSError:
            self._unsynced += messages
            raise

    def _set_due(self, oldest: Message) -> None:
        """Have the next sync begin in time: within half of msg_timeout."""
        now = self._loop.time()
        wait_s = min(self._plan.sync_interval_s, max((oldest.deadline - now) / 2, 0.0))
        self._sync_due_at = now + wait_s
        if self._due is not None:
            self._due.cancel()
        self._due = self._loop.call_at(self._sync_due_at, self._events.put_nowait, _Event.DUE)

    def _count_until_rotation(self, messages: list[Message]) -> int:
        """Return how many messages this file takes: it is full when it is larger than its bound."""
        if not self._plan.rotate_bytes:
            return len(messages)
        assert self._file is not None
        size = self._file.body_bytes
        for count, message in enumerate(messages, 1):
            size += len(message.body) + 1
            if size > self._plan.rotate_bytes:
                return count
        return len(messages)

    async def _look_at_clock(self) -> None:
        for path, name, rev in self._unmoved[:]:
            await self._move(path, name, rev)
            self._unmoved.remove((path, name, rev))
        if self._needs_rotation():
            if self._plan.skips_empty:
                await self._close()
            else:
                await self._open_next()

    def _needs_rotation(self) -> bool:
        file, plan = self._file, self._plan
        if file is None or self._names.at(time.time()) != self._name:
            return True
        if plan.rotate_interval_s and self._loop.time() - self._opened_at > plan.rotate_interval_s:
            return True
        return bool(plan.rotate_bytes) and file.body_bytes > plan.rotate_bytes

    # Files.

    async def _adopt(self) -> None:
        try:
            moved = await self._in_thread(adopt, self._folders, self._names.pattern)
        except OSError as error:
            self._report.note(f"leftovers stay in {self._folders.work_dir}: {error}")
            return
        for path in moved:
            self._report.note(f"adopted {path}")
            self._report.files += 1
            self._report.on_file(path)

    async def _open_next(self) -> None:
        await self._close()
        name = self._names.at(time.time())
        rev = self._rev + 1 if name == self._name else 0
        file, self._rev = await self._in_thread(self._folders.open, name, rev)
        self._file = file
        self._name = name
        self._opened_at = self._loop.time()
        self._report.note(f"opening {file.path}")

    async def _close(self) -> None:
        """Sync, finish, close and move the file; failures are left to `_recover`."""
        await self._wait_for_sync()
        file = self._file
        if file is None:
            return
        if self._unsynced:
            await self._begin_sync()
            await self._wait_for_sync()
        else:
            await self._in_thread(file.sync, file.end)
        self._file = None
        await self._in_thread(file.close)
        try:
            await self._move(file.path, self._name, self._rev)
        except OSError as error:
            self._unmoved.append((file.path, self._name, self._rev))
            self._report.note(f"cannot move {file.path}: {error}")

    async def _move(self, path: str, name: str, rev: int) -> None:
        goal = await self._in_thread(self._folders.finish, path, name, rev)
        self._report.files += 1
        self._report.on_file(goal)

    # Syncs.

    def _wants_sync(self) -> bool:
        if not self._unsynced or self._syncing is not None or self._retry is not None:
            return False
        is_due = self._loop.time() >= self._sync_due_at
        return is_due or self._consumer.is_starved(_GROUP_SHARE)

    async def _begin_sync(self) -> None:
        """Begin a sync of the bytes written so far; messages may be written meanwhile."""
        file = self._file
        assert file is not None
        assert self._syncing is None
        await self._in_thread(file.end_member)
        self._being_synced, self._unsynced = self._unsynced, []
        self._syncing = self._in_thread(file.sync, file.end)
        self._syncing.add_done_callback(lambda _: self._events.put_nowait(_Event.SYNCED))

    async def _wait_for_sync(self) -> None:
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
            await self._end_sync()

    async def _end_sync(self) -> None:
        """Finish the messages that an ended sync has covered, once."""
        if self._syncing is None or not self._syncing.done():
            return
        self._syncing.result()
        messages, self._being_synced, self._syncing = self._being_synced, [], None
        self._report.syncs += 1
        self._report.messages += len(messages)
        self._report.body_bytes += sum(len(message.body) for message in messages)
        Batch(messages).fin()
        self._pause_s = 0.0
        self._budget.grow()

    # Failures.

    async def _guard(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except OSError as error:
            await self._recover(error)

    async def _recover(self, failure: OSError) -> None:
        """Give back the messages that are not synced, and try again after a pause."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
            if self._syncing.exception() is None:
                await self._end_sync()
        is_sync_failed = self._syncing is not None
        messages = self._being_synced + self._unsynced
        self._being_synced, self._unsynced, self._syncing = [], [], None
        if self._file is not None:
            await self._cut_back(self._file, is_lost=is_sync_failed)
        self._budget.pause()
        Batch(messages).req(0, backoff=False)
        self._report.note(f"{failure}: {len(messages):,} messages go back")
        if self._plan.exits_on_full_disk:
            raise CliError(str(failure)) from failure
        self._pause_s = min(max(_MIN_PAUSE_S, self._pause_s * 2), _MAX_PAUSE_S)
        if self._retry is None:
            self._retry = self._loop.call_later(
                self._pause_s, self._events.put_nowait, _Event.RETRY
            )

    async def _cut_back(self, file: OutputFile, *, is_lost: bool) -> None:
        """Cut a file back to its synced bytes. After a sync that failed it is not used again."""
        try:
            await self._in_thread(file.cut_back)
        except OSError as error:
            self._report.note(f"cannot cut {os.path.basename(file.path)}: {error}")
            is_lost = True
        if is_lost:
            self._file = None
            await self._in_thread(file.close)
            if file.end:
                self._unmoved.append((file.path, self._name, self._rev))

    def _in_thread(self, function: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        return self._loop.run_in_executor(self._executor, function, *args)
