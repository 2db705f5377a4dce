"""Rounds: a fresh directory, a daemon that is killed, cut off or stopped, and what must be left.

Each scenario is a function of one `Round`. A round that fails says which seed makes it again.
"""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tests.support.faults.client import HttpLink, LinkEndedError
from tests.support.faults.drain import check_directory, compare, compare_history, drain
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.journal import Record, read_journal
from tests.support.faults.ledger import Expectation, Ledger
from tests.support.faults.nsqd_process import NsqdProcess, StartFailedError
from tests.support.faults.power_cut import PowerCut, SendIndex
from tests.support.faults.workload import MAX_READY, Mix, Workload

SYNC_TIMEOUT_S = 0.05
# When all is quiet, a sync begins after the timeout and ends long before this.
SYNC_SLACK_S = 0.5
# Under load a sync may be late; what was acknowledged this long ago must be durable.
LAZY_SLACK_S = 1.0
# How long a sick daemon may take to answer, and one whose disk is well again to notice.
ANSWER_S = 5.0
RECOVERY_S = 10.0
# How long clients work at most until a failpoint that was asked for is reached.
FAILPOINT_S = 5.0
_LOG_TAIL_CHARS = 3000
# A bound that no round reaches.
KEEP_ALL = "--retain-bytes=1000000000"

# What a daemon without a memory queue does to its disk; each can be killed before and after.
FAILPOINTS = (
    *(
        f"{action}:{place}"
        for place in (
            *("create:segment", "write:segment", "fsync:segment", "unlink:segment"),
            *("create:meta", "write:meta", "fsync:meta", "rename:meta"),
            *("create:finished", "write:finished", "fsync:finished", "rename:finished"),
            *("create:checksums", "write:checksums", "fsync:checksums", "unlink:checksums"),
            *("write:generation", "fsync:generation", "rename:generation"),
            *("create:nsqd", "write:nsqd", "fsync:nsqd", "rename:nsqd"),
            *("create:due", "write:due", "fsync:directory", "unlink:meta", "send:ok"),
        )
        for action in ("before", "after")
    ),
    *("tear:write:segment", "tear:write:checksums", "tear:write:meta", "tear:write:nsqd"),
    *("tear:write:finished", "tear:write:due", "before:unlink:finished"),
)


# What can fail, each with any error.
FAILURES = (
    *("write:segment", "write:*", "fsync:segment", "fsync:*", "fsync:directory", "create:*"),
    *("create:segment", "create:meta", "create:nsqd", "rename:*", "rename:meta", "unlink:*"),
    *("unlink:segment", "open:*", "read:*", "stat:*", "list:*", "statvfs:*", "*:*"),
)


class RoundFailedError(AssertionError):
    """A promise was broken; the text says which, and how to see it again."""


@dataclass(slots=True)
class Tally:
    """What was done so far."""

    rounds: int = 0
    messages: int = 0  # acknowledged
    verified: int = 0  # messages that had to be in a channel, and were
    kills: int = 0
    failpoints: int = 0  # of the kills, those at a named operation
    cuts: int = 0
    stops: int = 0
    errors: int = 0  # disks that failed for some time

    def __str__(self) -> str:
        return (
            f"rounds={self.rounds} messages={self.messages} verified={self.verified}"
            f" kills={self.kills} failpoints={self.failpoints} cuts={self.cuts} stops={self.stops}"
            f" disk_errors={self.errors}"
        )


@dataclass(slots=True)
class Round:
    """One run of a scenario."""

    server: ForkServer
    directory: Path
    seed: str
    tally: Tally = field(default_factory=Tally)
    mix: Mix = field(default_factory=Mix)
    plan: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    cut_count: int = 0
    # All that is acknowledged has to be in the archive too.
    keeps_history: bool = False
    chance: random.Random = field(init=False)
    process: NsqdProcess = field(init=False)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def prepare(
        self, *flags: str, file_sizes: tuple[int, ...] = (300, 1000, 5000, 100_000)
    ) -> None:
        """Choose the flags, and know the process that is not started yet.

        Args:
            file_sizes: to choose --max-bytes-per-file from; few records each, for many files.
        """
        chance = self.chance
        archive = ("--retain-bytes=50000",) if chance.random() < 0.2 else ()
        if self.keeps_history:
            archive = (KEEP_ALL,)
        self.flags = (
            f"--max-bytes-per-file={chance.choice(file_sizes)}",
            f"--sync-timeout={SYNC_TIMEOUT_S}s",
            "--msg-timeout=250ms",
            *archive,
            *self.flags,
            *flags,
        )
        self.process = NsqdProcess(self.server, self.directory / "first", self.flags)
        self.ledger = Ledger(lambda: self.process.journal_size)

    @property
    def duration_s(self) -> float:
        """How long clients work before the next end."""
        return self.chance.choice((0.03, 0.1, 0.3, 0.5)) * (0.5 + self.chance.random())

    async def begin_life(self, **options: object) -> Workload:
        """Start the daemon, with clients that are ready."""
        await self.process.start(**options)
        workload = Workload(self.process, self.ledger, self.chance, self.mix)
        await workload.prepare()
        return workload

    async def kill(self, workload: Workload | None) -> Expectation:
        """Kill the daemon, if it has not been killed, and say what must be left."""
        code = self.process.exit_code
        if code is None:
            await self.process.kill()
        elif code == -9:
            self.tally.failpoints += 1
        elif code != 0 or not self.process.is_stopping:
            self.fail([f"nsqd ended by itself with code {code}"])
        if workload is not None:
            await workload.finish()
        self.tally.kills += 1
        self.check()
        return self.ledger.expect()

    def check(self) -> None:
        """`diskqueue check` must find no damage."""
        code, output = check_directory(self.process.data_path)
        if code != 0:
            damage = [line for line in output.splitlines() if " DAMAGE " in line]
            if self.ledger.had_open_drops or any("ENOSPC" in rule for rule in self.plan):
                # Killed while it removed files, now or before; or a full disk, where it deletes
                # what is finished before it can write that down.
                damage = [line for line in damage if not line.endswith("segments are missing")]
            if any(rule.startswith("tear:") for rule in self.plan):
                damage = [line for line in damage if "runs past the end" not in line]
            if damage:
                self.fail([f"diskqueue check ended with {code}", *damage])

    async def verify(
        self,
        process: NsqdProcess,
        expected: Expectation,
        *,
        are_doubles_allowed: bool = True,
        loss_limit: int = 0,
    ) -> None:
        """Start the daemon once more and take everything out; `compare` knows the options."""
        try:
            await process.start(flags=("--msg-timeout=60s",))
        except StartFailedError as error:
            self.fail([f"nsqd does not start again: {error}"], process)
        drained = await drain(process, self.ledger.topics)
        problems = compare(
            drained,
            expected,
            are_doubles_allowed=are_doubles_allowed,
            loss_limit=loss_limit,
        )
        code = await process.stop()
        if code != 0:
            problems.append(f"nsqd ended with code {code} after the drain")
        if self.keeps_history:
            problems += compare_history(process.data_path, expected)
        if problems:
            self.fail(problems, process)
        self.tally.verified += sum(map(len, expected.required.values()))

    async def must_answer(self, target: str, *statuses: int) -> bytes:
        """The daemon must reply to a GET, with one of these."""
        if self.process.exit_code is not None:
            self.fail([f"nsqd ended with code {self.process.exit_code}"])
        with await HttpLink.connect(self.process.http_port) as link:
            try:
                async with asyncio.timeout(ANSWER_S):
                    status, body = await link.request("GET", target)
            except TimeoutError:
                self.fail([f"no answer to {target} in {ANSWER_S} s"])
        if status not in statuses:
            self.fail([f"{target} says {status} {body.decode()}"])
        return body

    async def must_recover(self) -> None:
        """The disk is well again: /ping and publishers must get their OK before long."""
        deadline = asyncio.get_running_loop().time() + RECOVERY_S
        answers = []
        while asyncio.get_running_loop().time() < deadline:
            batch = self.ledger.send("t0", [b"probe %d" % self.ledger.next_number()])
            with await HttpLink.connect(self.process.http_port) as link:
                status, reply = await link.request("POST", "/pub?topic=t0", batch[0].body)
                if status == 200:
                    self.ledger.acknowledge(batch, link)
                health, text = await link.request("GET", "/ping")
            if (status, health) == (200, 200):
                return
            answers.append(f"/pub {status} {reply.decode()}, /ping {health} {text.decode()}")
            await asyncio.sleep(0.1)
        self.fail([f"not well {RECOVERY_S} s after the disk: {answers[-1]}"])

    def count(self) -> None:
        """Add what was acknowledged to the tally."""
        self.tally.messages += sum(sent.is_acknowledged for sent in self.ledger.messages.values())

    def fail(self, problems: list[str], process: NsqdProcess | None = None) -> NoReturn:
        """Tell what is wrong.

        Raises:
            RoundFailedError: always.
        """
        log = (process or self.process).log[-_LOG_TAIL_CHARS:]
        lines = [
            f"round {self.seed} failed",
            *problems,
            f"flags: {' '.join(self.flags)}",
            f"plan: {' '.join(self.plan) or 'none'}",
            f"again: make soak SEED={self.seed}",
            f"files: {(process or self.process).data_path}",
            f"log of nsqd, its end:\n{log}",
        ]
        raise RoundFailedError("\n".join(lines))


# --- kills


async def kill_without_memory_queue(game: Round) -> None:
    """SIGKILL at any moment, some lives in a row: all that was acknowledged is there."""
    chance = game.chance
    game.prepare("--mem-queue-size=0", f"--sync-every={chance.choice((1, 5, 50, 2500))}")
    for life in range(chance.randint(1, 3)):
        workload = await game.begin_life(plan=game.plan, is_on_stock_loop=chance.random() < 0.3)
        if life == 0 and chance.random() < 0.3:
            await _sync_in_between(workload)
            workload = Workload(game.process, game.ledger, chance, game.mix)
        await workload.run(game.duration_s)
        expected = await game.kill(workload)
        game.count()
        game.ledger.carry_on(expected)
    await game.verify(game.process, game.ledger.expect())


async def _sync_in_between(workload: Workload) -> None:
    """Give the finished messages the time to be finished for good."""
    await workload.run(0.2, is_stopped_gently=True)
    await asyncio.sleep(SYNC_TIMEOUT_S + SYNC_SLACK_S)
    workload.note_synced()


async def kill_at_failpoint(game: Round) -> None:
    """SIGKILL before or after a named operation, at the start of the daemon too."""
    chance = game.chance
    game.prepare("--mem-queue-size=0", f"--sync-every={chance.choice((1, 5, 50))}")
    limit_s = FAILPOINT_S
    if not game.plan:
        limit_s = game.duration_s
        number = chance.choice((1, 1, 2, 3, 5, 10, 30))
        game.plan = (f"{chance.choice(FAILPOINTS)}:{number}",)
    elif "unlink" in game.plan[0]:
        game.mix = Mix(drop_share=1.0)
    for _ in range(chance.randint(1, 2)):
        workload = None
        try:
            workload = await game.begin_life(plan=game.plan)
            await workload.run(limit_s)
            if chance.random() < 0.3 and game.process.exit_code is None:
                await game.process.stop()  # or killed while it stops
        except (StartFailedError, LinkEndedError):
            await game.process.wait()  # killed before it listened, or while the topics were made
        expected = await game.kill(workload)
        game.count()
        game.ledger.carry_on(expected)
    await game.verify(game.process, game.ledger.expect())


async def kill_with_memory_queue(game: Round) -> None:
    """SIGKILL with a memory queue: no more is lost than it holds, and what was out or deferred."""
    size = game.chance.choice((1, 10, 30))
    game.prepare(f"--mem-queue-size={size}")
    workload = await game.begin_life()
    await workload.run(game.duration_s)
    expected = await game.kill(workload)
    game.count()
    game.ledger.keep_untouched(expected)
    # Its own queue, that of the topic, and what was on its way to consumers who did not read it.
    loss_limit = 2 * size + game.mix.consumer_count * MAX_READY
    await game.verify(game.process, expected, loss_limit=loss_limit)


async def stop_gracefully(game: Round) -> None:
    """SIGTERM in the middle of everything, in any mode: all is there, once, with its attempts."""
    chance = game.chance
    game.prepare(f"--mem-queue-size={chance.choice((0, 0, 10, 10_000))}")
    workload = await game.begin_life(is_on_stock_loop=chance.random() < 0.3)
    is_gentle = chance.random() < 0.5
    await workload.run(game.duration_s, is_stopped_gently=is_gentle)
    workload.note_synced() if is_gentle else None
    code = await game.process.stop()
    if not is_gentle:
        await workload.finish()
    if code != 0:
        game.fail([f"nsqd ended with code {code}"])
    game.tally.stops += 1
    game.count()
    game.check()
    expected = game.ledger.expect(is_graceful=True)
    await game.verify(game.process, expected, are_doubles_allowed=False)


# --- disks that fail


async def fail_for_some_time(game: Round) -> None:
    """The disk fails and recovers: the daemon lives, says so, and keeps what it acknowledged."""
    chance = game.chance
    # While no fsync works, files gather that need one afterwards: not too many, for this machine.
    sizes = (5000, 100_000)
    sync_every = f"--sync-every={chance.choice((1, 5, 50))}"
    game.prepare("--mem-queue-size=0", sync_every, file_sizes=sizes)
    if not game.plan:
        error = chance.choice(("EIO", "ENOSPC"))
        game.plan = (f"{error}:{chance.choice(FAILURES)}:{chance.choice((1, 2, 5))}+",)
    workload = await game.begin_life(plan=game.plan, has_switch=True)
    work = asyncio.create_task(workload.run(60.0))
    await asyncio.sleep(game.duration_s)
    game.process.switch_path.touch()
    await asyncio.sleep(game.duration_s)
    await game.must_answer("/ping", 200, 500)
    game.process.switch_path.unlink()
    game.tally.errors += 1
    await game.must_recover()
    await asyncio.sleep(game.duration_s)
    work.cancel()
    if work.done() and not work.cancelled():
        await work
    if chance.random() < 0.5:
        expected = await game.kill(workload)
    else:
        code = await game.process.stop()
        await workload.finish()
        if code != 0:
            game.fail([f"nsqd ended with code {code}"])
        expected = game.ledger.expect()
    game.count()
    await game.verify(game.process, expected)


# --- power cuts


async def cut_with_sync_every_1(game: Round, cut_count: int = 4) -> None:
    """The power fails with --sync-every=1: all that was acknowledged is there."""
    game.prepare("--mem-queue-size=0", "--sync-every=1")
    await _cut_anywhere(game, cut_count)
    if game.chance.random() < 0.3:
        # Go on with what a cut has left, and cut again.
        records, position, expected = _choose_cut(game)
        game.ledger.carry_on(expected)
        game.process = NsqdProcess(game.server, game.directory / "second", game.flags)
        shutil.rmtree(game.process.data_path)
        PowerCut(records, position).rebuild(game.process.data_path, game.chance)
        await _cut_anywhere(game, cut_count // 2)


async def _cut_anywhere(game: Round, cut_count: int) -> None:
    """Cut one life at many positions."""
    records = await _record_life(game, 0.2)
    sends = SendIndex(records)
    for position in _choose_cuts(game.chance, records, cut_count):
        expected = game.ledger.expect(position, sends)
        if game.plan:
            expected.gone.clear()  # a topic keeps what its channels may not have, so it comes again
        await _cut(game, records, position, expected)


def _choose_cut(game: Round) -> tuple[list[Record], int, Expectation]:
    """Cut the last life once more."""
    assert game.process.journal_path is not None
    records = list(read_journal(game.process.journal_path))
    [position] = _choose_cuts(game.chance, records, 1)
    return records, position, game.ledger.expect(position, SendIndex(records))


async def cut_after_failed_fsync(game: Round) -> None:
    """As with --sync-every=1, but some fsyncs fail before: their publishes were refused."""
    chance = game.chance
    numbers = sorted(chance.sample(range(1, 100), 3))
    game.plan = tuple(f"EIO:fsync:segment:{number}" for number in numbers)
    await cut_with_sync_every_1(game)


async def cut_with_sync_timeout(game: Round, cut_count: int = 4) -> None:
    """The power fails: all that was acknowledged sync-timeout ago, and a bit, is there."""
    game.prepare("--mem-queue-size=0", f"--sync-every={game.chance.choice((20, 2500))}")
    records = await _record_life(game, LAZY_SLACK_S)
    sends = SendIndex(records)
    for position in _choose_cuts(game.chance, records, cut_count):
        moment_s = max(record.time_s for record in records if record.position < position)
        due_s = moment_s - SYNC_TIMEOUT_S - LAZY_SLACK_S
        due = max((record.position for record in records if record.time_s <= due_s), default=0)
        expected = game.ledger.expect(position, sends, acked_before=due)
        await _cut(game, records, position, expected)


async def _record_life(game: Round, extra_s: float) -> list[Record]:
    """One life with a journal."""
    workload = await game.begin_life(has_journal=True, plan=game.plan)
    if game.chance.random() < 0.3:
        await _sync_in_between(workload)
        workload = Workload(game.process, game.ledger, game.chance, game.mix)
    await workload.run(game.duration_s + extra_s)
    if game.process.exit_code is not None:
        game.fail([f"nsqd ended by itself with code {game.process.exit_code}"])
    await game.process.kill()
    await workload.finish()
    game.count()
    assert game.process.journal_path is not None
    return list(read_journal(game.process.journal_path))


def _choose_cuts(chance: random.Random, records: list[Record], count: int) -> list[int]:
    """Positions to cut at: half of them anywhere, half right after something was told."""
    sends = [index for index, record in enumerate(records) if record.name == "send"]
    chosen = []
    for number in range(count):
        index = chance.choice(sends) if sends and number % 2 else chance.randrange(len(records))
        chosen.append(records[min(index + 1, len(records) - 1)].position)
    return chosen


async def _cut(game: Round, records: list[Record], position: int, expected: Expectation) -> None:
    game.cut_count += 1
    directory = game.directory / f"cut.{game.cut_count}"
    PowerCut(records, position).rebuild(directory / "data", game.chance)
    process = NsqdProcess(game.server, directory, game.flags)
    check_directory(process.data_path)  # may find damage, but must be able to say so
    game.tally.cuts += 1
    shutil.copytree(directory / "data", directory / "found")  # to look at if it fails
    await game.verify(process, expected)


# --- the archive


async def kill_with_history(game: Round) -> None:
    """SIGKILL at any moment: all that was acknowledged is in the archive too."""
    game.keeps_history = True
    await kill_without_memory_queue(game)


async def cut_with_history(game: Round) -> None:
    """The power fails with --sync-every=1: all that was acknowledged is in the archive too."""
    game.keeps_history = True
    await cut_with_sync_every_1(game)


Scenario = Callable[[Round], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {
    "kill": kill_without_memory_queue,
    "failpoint": kill_at_failpoint,
    "memory": kill_with_memory_queue,
    "stop": stop_gracefully,
    "cut": cut_with_sync_every_1,
    "lazy": cut_with_sync_timeout,
    "disk": fail_for_some_time,
    "sick": cut_after_failed_fsync,
    "history": kill_with_history,
    "historycut": cut_with_history,
}


async def play(
    server: ForkServer,
    directory: Path,
    seed: str,
    tally: Tally | None = None,
    plan: tuple[str, ...] = (),
) -> None:
    """Play the round of a seed, `SCENARIO-NUMBER`; its files go if all is well.

    Raises:
        RoundFailedError: a promise was broken.
    """
    game = Round(server, directory / seed, seed, tally or Tally(), plan=plan)
    game.tally.rounds += 1
    try:
        await SCENARIOS[seed.partition("-")[0]](game)
    except BaseException:
        await game.process.kill()  # its clients end with it
        raise
    shutil.rmtree(game.directory)
