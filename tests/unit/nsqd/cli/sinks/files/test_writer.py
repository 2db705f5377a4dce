"""Group commit: when a sync begins, what it finishes, and what a full disk leaves."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from nsqd.cli.output import CliError
from nsqd.cli.sinks.budget import ByteBudget
from nsqd.cli.sinks.files import writer as writer_module
from nsqd.cli.sinks.files.folders import Folders
from nsqd.cli.sinks.files.names import FileNames
from nsqd.cli.sinks.files.writer import FilePlan, FileReport, TopicWriter
from nsqd.client import Batch, Consumer, Message
from nsqd.client.consume.message import MessageState
from tests.support.client_messages import FakeOrigin, make_message
from tests.support.waiting import until


class FakeConsumer:
    """Gives what the test puts; starved when the test says so."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[list[Message] | None] = asyncio.Queue()
        self.is_hungry = False
        self.max_in_flight: list[int] = []

    async def batches(self, _count: int, _wait: float) -> AsyncIterator[Batch]:
        while (messages := await self.queue.get()) is not None:
            yield Batch(messages)

    def is_starved(self, _share: float) -> bool:
        return self.is_hungry

    def set_max_in_flight(self, count: int) -> None:
        self.max_in_flight.append(count)


class Rig:
    """A writer with its consumer, running."""

    def __init__(self, path: Path, executor: ThreadPoolExecutor, plan: FilePlan) -> None:
        self.consumer = FakeConsumer()
        self.origin = FakeOrigin()
        self.notes: list[str] = []
        self.files: list[str] = []
        self.report = FileReport(self.notes.append, self.files.append)
        folders = Folders(str(path / "out"), str(path / "work"))
        folders.prepare()
        consumer = cast(Consumer, self.consumer)
        self.writer = TopicWriter(
            consumer,
            FileNames.make("<TOPIC><REV>.log", "t"),
            folders,
            plan,
            self.report,
            ByteBudget(consumer, 100),
            executor,
        )
        self.task = asyncio.ensure_future(self.writer.run())
        self.count = 0

    def put(self, *bodies: bytes) -> None:
        messages = []
        for body in bodies:
            self.count += 1
            message = make_message(self.count, body=body, origin=self.origin)
            message.state = MessageState.HANDED
            messages.append(message)
        self.consumer.queue.put_nowait(messages)

    @property
    def answers(self) -> list[Any]:
        return [answer[0] for answer in self.origin.answers]

    async def end(self) -> None:
        self.consumer.queue.put_nowait(None)
        await self.task


Make = Callable[..., Rig]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    rigs: list[Rig] = []
    with ThreadPoolExecutor(2) as executor:

        def build(**plan: Any) -> Rig:
            rigs.append(Rig(tmp_path, executor, FilePlan(**{"sync_interval_s": 60.0, **plan})))
            return rigs[-1]

        yield build
        for rig in rigs:
            rig.task.cancel()
            await asyncio.gather(rig.task, return_exceptions=True)


def outputs(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((tmp_path / "out").iterdir())}


async def test_messages_are_finished_when_an_nsqd_waits_for_answers(
    make: Make, tmp_path: Path
) -> None:
    rig = make()
    rig.put(b"one", b"two")
    await until(lambda: (tmp_path / "work" / "t-000000.log").exists())
    assert rig.answers == []

    rig.consumer.is_hungry = True
    rig.put(b"three")
    await until(lambda: len(rig.answers) == 3)

    await rig.end()
    assert outputs(tmp_path) == {"t-000000.log": b"one\ntwo\nthree\n"}
    assert rig.files == [str(tmp_path / "out" / "t-000000.log")]
    assert (rig.report.messages, rig.report.body_bytes, rig.report.files) == (3, 11, 1)


async def test_messages_are_finished_after_the_interval(make: Make) -> None:
    rig = make(sync_interval_s=0.02)
    rig.put(b"one")

    await until(lambda: rig.answers == ["FIN"])
    await rig.end()


async def test_the_next_group_is_written_while_one_is_synced(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    running = asyncio.get_running_loop()
    real = os.fsync

    def fsync(fd: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            asyncio.run_coroutine_threadsafe(gate.wait(), running).result()
        real(fd)

    rig = make()
    monkeypatch.setattr(os, "fsync", fsync)
    rig.consumer.is_hungry = True
    rig.put(b"one")
    path = tmp_path / "work" / "t-000000.log"
    await until(lambda: path.exists() and path.read_bytes() == b"one\n")
    rig.put(b"two")
    await until(lambda: path.read_bytes() == b"one\ntwo\n")
    assert rig.answers == []

    gate.set()
    await until(lambda: rig.answers == ["FIN", "FIN"])
    await rig.end()
    assert rig.report.syncs == 2


async def test_a_file_ends_when_it_is_larger_than_its_bound(make: Make, tmp_path: Path) -> None:
    rig = make(rotate_bytes=6)
    rig.put(b"1234", b"56", b"7")

    await rig.end()

    assert outputs(tmp_path) == {"t-000000.log": b"1234\n56\n", "t-000001.log": b"7\n"}
    assert rig.answers == ["FIN"] * 3


async def test_a_file_is_closed_and_the_next_message_opens_another(
    make: Make, tmp_path: Path
) -> None:
    rig = make()
    rig.put(b"one")
    await until(lambda: (tmp_path / "work" / "t-000000.log").exists())
    rig.writer.close_file()
    await until(lambda: rig.answers == ["FIN"])
    rig.put(b"two")

    await rig.end()

    assert outputs(tmp_path) == {"t-000000.log": b"one\n", "t-000001.log": b"two\n"}


@pytest.mark.parametrize("is_skipping", [False, True])
async def test_an_empty_file_is_made_unless_it_is_to_be_skipped(
    make: Make,
    tmp_path: Path,
    is_skipping: bool,  # noqa: FBT001 - drawn
) -> None:
    rig = make(sync_interval_s=0.01, skips_empty=is_skipping)
    rig.put(b"one")
    await until(lambda: rig.answers == ["FIN"])
    rig.writer.close_file()
    await until(lambda: bool(outputs(tmp_path)))
    if not is_skipping:
        await until(lambda: (tmp_path / "work" / "t-000001.log").exists())
    await rig.end()

    assert len(outputs(tmp_path)) == 1 + (not is_skipping)


@pytest.mark.parametrize("operation", ["write", "fsync", "open"])
async def test_a_full_disk_is_waited_for(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(writer_module, "_MIN_PAUSE_S", 0.01)
    rig = make(sync_interval_s=0.01)
    real = getattr(os, operation)

    def fail(first: Any, *rest: Any) -> Any:
        if operation == "open" and not str(first).endswith(".log"):
            return real(first, *rest)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(os, operation, fail)
        rig.put(b"one", b"two")
        await until(lambda: rig.answers == ["REQ", "REQ"])
    assert 0 in rig.consumer.max_in_flight
    await until(lambda: rig.consumer.max_in_flight[-1] > 0)

    rig.put(b"one", b"two")
    await until(lambda: rig.answers == ["REQ", "REQ", "FIN", "FIN"])
    await rig.end()
    assert b"".join(outputs(tmp_path).values()) == b"one\ntwo\n"
    assert "No space left" in rig.notes[0] + rig.notes[-1] + "".join(rig.notes)


async def test_a_full_disk_ends_it_if_that_is_wanted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(exits_on_full_disk=True)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    rig.put(b"one")

    with pytest.raises(CliError, match="No space left"):
        await rig.task
    assert rig.answers == ["REQ"]


async def test_a_move_that_fails_is_tried_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(sync_interval_s=0.01, skips_empty=True)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(os, "link", fail)
        rig.put(b"one")
        await until(lambda: rig.answers == ["FIN"])
        rig.writer.close_file()
        await until(lambda: any("cannot move" in each for each in rig.notes))
    await until(lambda: outputs(tmp_path) == {"t-000000.log": b"one\n"})
    await rig.end()


async def test_leftovers_are_adopted_at_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "t-000007.log").write_bytes(b"before\ntor")
    rig = make()

    await rig.end()

    assert outputs(tmp_path) == {"t-000007.log": b"before\n"}
    assert rig.files == [str(tmp_path / "out" / "t-000007.log")]
