"""When a sync starts, what it covers, whom it settles and how it is tried again."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from diskqueue import SyncJob
from nsqd.broker.durations import SyncTimes
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.queue.sync_schedule import (
    PROMPT_METADATA_S,
    SyncRules,
    SyncSchedule,
    SyncState,
)
from tests.support.fake_scheduler import FakeScheduler

BROKEN = OSError(errno.EIO, "Input/output error")
NO_DESCRIPTORS = OSError(errno.EMFILE, "Too many open files")
EVERY_COUNT = 3
TIMEOUT_S = 2.0


@dataclass
class FakeJob:
    """A sync of the records, and of the metadata if there is some."""

    append_count: int
    commit_count: int
    metadata: object | None
    are_segments_durable: bool = False
    has_new_files: bool = False

    def run(self) -> None:
        self.are_segments_durable = True


@dataclass
class FakeQueue:
    """Counts of changes, and the jobs that were made of them."""

    append_count: int = 0
    commit_count: int = 0
    refusal: OSError | None = None
    jobs: list[FakeJob] = field(default_factory=list)
    errors: list[OSError | None] = field(default_factory=list)

    @property
    def unsynced_count(self) -> int:
        return self.append_count + self.commit_count

    def prepare_sync(self, *, with_metadata: bool = True) -> SyncJob | None:
        if self.refusal is not None:
            raise self.refusal
        commit_count = self.commit_count if with_metadata else 0
        if not self.append_count and not commit_count:
            return None
        job = FakeJob(self.append_count, commit_count, object() if with_metadata else None)
        self.jobs.append(job)
        return cast(SyncJob, job)

    def complete_sync(self, job: SyncJob, error: OSError | None = None) -> None:
        fake = cast(FakeJob, job)
        assert fake is self.jobs[-1]
        self.errors.append(error)
        if error is None:
            self.append_count -= fake.append_count
            self.commit_count -= fake.commit_count


class Rig:
    """A SyncSchedule over a FakeQueue; its threads wait for `finish`."""

    def __init__(self, *, is_group_commit: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self.queue = FakeQueue()
        self.scheduler = FakeScheduler()
        self.scheduler.holds_threads = True
        self.outcomes: list[OSError | None] = []
        self.sync_times = SyncTimes((1.0,))
        self.settled: list[tuple[str, Exception | None]] = []
        self.schedule = SyncSchedule(
            "t:c",
            self.queue,
            self.scheduler,
            SyncRules(EVERY_COUNT, timeout_s, is_group_commit=is_group_commit),
            self.outcomes.append,
            self.sync_times,
        )

    @property
    def state(self) -> SyncState:
        return self.schedule.state

    @property
    def kinds(self) -> list[str]:
        """The syncs that were started."""
        return ["records" if job.metadata is None else "full" for job in self.queue.jobs]

    @property
    def timer_delays(self) -> list[float]:
        return [timer.when - self.scheduler.now for timer in self.scheduler.pending_timers]

    def append(self) -> None:
        self.queue.append_count += 1
        self.schedule.note_append()

    def commit(self) -> None:
        self.queue.commit_count += 1
        self.schedule.note_change()

    def publish(self, name: str, then: Callable[[], object] | None = None) -> None:
        self.append()
        receipt = Receipt(1)

        def settle(error: Exception | None) -> None:
            self.settled.append((name, error))
            if then is not None:
                then()

        receipt.when_done(settle)
        self.schedule.add_receipt(receipt)

    def finish(self, error: OSError | None = None, *, are_records_safe: bool = False) -> None:
        """End the sync that runs."""
        if are_records_safe:
            self.queue.jobs[-1].are_segments_durable = True
        self.scheduler.finish_thread(error)
        self.scheduler.settle()


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def prompt() -> Rig:
    """A schedule with group commit."""
    return Rig(is_group_commit=True)


# --- after a time, or after so many changes


def test_a_full_sync_starts_so_long_after_the_first_change(rig: Rig) -> None:
    # D-9
    assert rig.state is SyncState.IDLE
    rig.append()
    assert (rig.state, rig.timer_delays) == (SyncState.WAITING, [TIMEOUT_S])
    rig.scheduler.advance(1.5)
    rig.append()
    assert rig.timer_delays == [0.5]  # later changes don't put it off
    rig.scheduler.advance(0.499)
    assert rig.kinds == []

    rig.scheduler.advance(0.001)

    assert (rig.state, rig.kinds, rig.timer_delays) == (SyncState.RUNNING, ["full"], [])
    rig.finish()
    assert (rig.state, rig.queue.errors) == (SyncState.IDLE, [None])
    assert rig.outcomes == []
    assert rig.sync_times.count == 1


def test_nothing_happens_without_a_change(rig: Rig) -> None:
    # D-10
    rig.append()
    rig.scheduler.advance(TIMEOUT_S)
    rig.finish()

    rig.scheduler.advance(1000)

    assert (rig.state, rig.kinds, rig.timer_delays) == (SyncState.IDLE, ["full"], [])


@pytest.mark.parametrize("commit_count", [0, 1, 3])
def test_a_full_sync_starts_at_the_end_of_the_turn_that_has_enough_changes(
    rig: Rig, commit_count: int
) -> None:
    # D-9
    for number in range(EVERY_COUNT):
        assert rig.state is (SyncState.WAITING if number else SyncState.IDLE)
        if number < commit_count:
            rig.commit()
        else:
            rig.append()
    assert (rig.state, rig.kinds, rig.timer_delays) == (SyncState.STARTING, [], [])
    rig.append()

    rig.scheduler.settle()

    assert rig.kinds == ["full"]
    job = rig.queue.jobs[0]
    assert job.append_count + job.commit_count == EVERY_COUNT + 1


def test_one_sync_runs_at_a_time_and_changes_meanwhile_wait_for_the_next(rig: Rig) -> None:
    for _ in range(EVERY_COUNT):
        rig.append()
    rig.scheduler.settle()
    for _ in range(EVERY_COUNT):
        rig.append()
    rig.scheduler.advance(TIMEOUT_S)
    assert (rig.state, rig.kinds) == (SyncState.RUNNING, ["full"])

    rig.finish()

    assert (rig.state, rig.kinds) == (SyncState.RUNNING, ["full", "full"])
    rig.finish()
    assert rig.state is SyncState.IDLE


def test_a_few_changes_during_a_sync_wait_for_the_timer(rig: Rig) -> None:
    rig.append()
    rig.scheduler.advance(TIMEOUT_S)
    rig.commit()
    rig.scheduler.advance(0.5)

    rig.finish()

    assert (rig.state, rig.timer_delays) == (SyncState.WAITING, [TIMEOUT_S])
    assert rig.kinds == ["full"]


def test_a_sync_with_nothing_to_do_starts_no_thread(rig: Rig) -> None:
    rig.append()
    rig.queue.append_count = 0

    rig.scheduler.advance(TIMEOUT_S)

    assert (rig.state, rig.kinds, rig.outcomes) == (SyncState.IDLE, [], [])
    assert len(rig.scheduler.held_work) == 0


# --- receipts


def test_without_group_commit_a_receipt_waits_for_the_sync_that_comes_anyway(rig: Rig) -> None:
    rig.publish("a")
    assert (rig.state, rig.timer_delays) == (SyncState.WAITING, [TIMEOUT_S])
    rig.scheduler.advance(TIMEOUT_S)
    rig.publish("b")

    rig.finish()
    assert rig.settled == [("a", None)]
    assert rig.state is SyncState.WAITING
    rig.scheduler.advance(TIMEOUT_S)
    rig.finish()

    assert rig.settled == [("a", None), ("b", None)]


def test_with_group_commit_one_sync_covers_a_turn(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.publish("b")
    assert (prompt.state, prompt.kinds, prompt.timer_delays) == (SyncState.STARTING, [], [])
    prompt.scheduler.settle()
    assert prompt.kinds == ["records"]
    assert prompt.queue.jobs[0].append_count == 2
    prompt.publish("c")
    prompt.scheduler.settle()
    assert (prompt.kinds, prompt.settled) == (["records"], [])

    prompt.finish()

    assert prompt.settled == [("a", None), ("b", None)]
    assert prompt.kinds == ["records", "records"]
    prompt.finish()
    assert prompt.settled[2:] == [("c", None)]


def test_with_group_commit_so_many_changes_start_no_sync(prompt: Rig) -> None:
    for _ in range(2 * EVERY_COUNT):
        prompt.append()
    prompt.scheduler.settle()

    assert (prompt.state, prompt.kinds) == (SyncState.WAITING, [])
    assert prompt.timer_delays == [pytest.approx(PROMPT_METADATA_S)]


@pytest.mark.parametrize(("timeout_s", "delay_s"), [(TIMEOUT_S, PROMPT_METADATA_S), (0.03, 0.03)])
def test_with_group_commit_the_metadata_follows_soon(timeout_s: float, delay_s: float) -> None:
    prompt = Rig(is_group_commit=True, timeout_s=timeout_s)
    prompt.publish("a")
    prompt.commit()
    prompt.scheduler.settle()
    prompt.scheduler.advance(0.01)
    prompt.finish()
    assert prompt.state is SyncState.WAITING
    assert prompt.timer_delays == [pytest.approx(delay_s - 0.01)]  # since the first change

    prompt.scheduler.advance(delay_s - 0.01)

    assert prompt.kinds == ["records", "full"]
    prompt.finish()
    assert (prompt.state, prompt.timer_delays) == (SyncState.IDLE, [])


def test_the_next_group_commit_writes_the_metadata_if_it_is_due(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.publish("b")
    prompt.scheduler.advance(PROMPT_METADATA_S)
    assert prompt.kinds == ["records"]

    prompt.finish()

    assert prompt.kinds == ["records", "full"]
    prompt.finish()
    assert (prompt.state, prompt.timer_delays) == (SyncState.IDLE, [])


def test_a_full_sync_follows_at_once_if_its_time_has_passed_during_another(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.commit()
    prompt.scheduler.advance(PROMPT_METADATA_S)

    prompt.finish()
    prompt.scheduler.advance(0)

    assert prompt.kinds == ["records", "full"]
    assert prompt.queue.jobs[-1].commit_count == 1


def test_a_commit_during_a_full_sync_gets_the_next(prompt: Rig) -> None:
    prompt.commit()
    prompt.scheduler.advance(PROMPT_METADATA_S)
    prompt.commit()

    prompt.finish()

    assert (prompt.state, prompt.kinds) == (SyncState.WAITING, ["full"])
    assert prompt.timer_delays == [pytest.approx(PROMPT_METADATA_S)]


def test_a_receipt_added_after_its_sync_has_begun_is_settled_by_it(rig: Rig) -> None:
    rig.append()
    rig.scheduler.advance(TIMEOUT_S)
    receipt = Receipt(1)
    rig.schedule.add_receipt(receipt)

    rig.finish()

    assert receipt.is_done


def test_receipts_are_settled_when_the_queue_is_emptied(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.publish("b")

    prompt.schedule.settle_all()

    assert prompt.settled == [("a", None), ("b", None)]
    prompt.finish()
    assert prompt.state is not SyncState.RUNNING


@pytest.mark.parametrize("error", [None, BROKEN])
def test_a_publish_made_while_others_are_settled_gets_its_sync(
    prompt: Rig, error: OSError | None
) -> None:
    prompt.publish("a", then=lambda: prompt.publish("b"))
    prompt.scheduler.settle()

    prompt.finish(error)
    assert prompt.settled == [("a", error)]
    assert prompt.state is SyncState.RUNNING
    prompt.finish()

    assert prompt.settled == [("a", error), ("b", None)]


@pytest.mark.parametrize("refusal", [None, NO_DESCRIPTORS])
def test_a_publish_made_while_a_sync_without_a_job_is_settled_gets_its_sync(
    prompt: Rig, refusal: OSError | None
) -> None:
    def again() -> None:
        prompt.queue.refusal = None
        prompt.publish("b")

    prompt.publish("a", then=again)
    prompt.queue.append_count = 0
    prompt.queue.refusal = refusal

    prompt.scheduler.settle()
    assert prompt.settled == [("a", refusal)]
    assert prompt.state is SyncState.RUNNING
    prompt.finish()

    assert prompt.settled == [("a", refusal), ("b", None)]


# --- failures


def test_a_failed_sync_is_reported_and_tried_again_after_the_timeout(rig: Rig) -> None:
    for _ in range(EVERY_COUNT):
        rig.append()
    rig.scheduler.settle()
    rig.scheduler.advance(0.5)

    rig.finish(BROKEN)

    assert rig.outcomes == [BROKEN]
    assert (rig.state, rig.timer_delays) == (SyncState.WAITING, [TIMEOUT_S])
    rig.append()  # more than enough changes, but it would only fail again
    rig.scheduler.advance(TIMEOUT_S - 0.001)
    assert rig.kinds == ["full"]
    rig.scheduler.advance(0.001)
    assert rig.kinds == ["full", "full"]
    rig.finish(BROKEN)
    assert rig.outcomes == [BROKEN, BROKEN]
    rig.scheduler.advance(TIMEOUT_S)
    rig.finish()
    assert rig.outcomes == [BROKEN, BROKEN, None]
    for _ in range(EVERY_COUNT):
        rig.append()
    assert rig.state is SyncState.STARTING


def test_a_failed_sync_is_logged_with_the_name_of_its_queue(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.append()
    rig.scheduler.advance(TIMEOUT_S)

    rig.finish(BROKEN)

    assert caplog.messages == ["DISKQUEUE(t:c): failed to sync - [Errno 5] Input/output error"]


def test_success_is_reported_only_after_a_failure(rig: Rig) -> None:
    for _ in range(3):
        rig.append()
        rig.scheduler.advance(TIMEOUT_S)
        rig.finish()

    assert rig.outcomes == []


def test_a_sync_that_cannot_be_prepared_is_tried_again(rig: Rig) -> None:
    rig.publish("a")
    rig.queue.refusal = NO_DESCRIPTORS
    rig.scheduler.advance(TIMEOUT_S)
    assert (rig.outcomes, rig.settled) == ([NO_DESCRIPTORS], [("a", NO_DESCRIPTORS)])
    assert (rig.state, rig.timer_delays) == (SyncState.WAITING, [TIMEOUT_S])
    rig.queue.refusal = None

    rig.scheduler.advance(TIMEOUT_S)
    rig.finish()

    assert rig.outcomes == [NO_DESCRIPTORS, None]
    assert rig.state is SyncState.IDLE


def test_a_failure_is_over_when_its_changes_are_gone(rig: Rig) -> None:
    rig.append()
    rig.scheduler.advance(TIMEOUT_S)
    rig.finish(BROKEN)
    rig.queue.append_count = 0

    rig.scheduler.advance(TIMEOUT_S)

    assert rig.outcomes == [BROKEN, None]


def test_a_failed_group_commit_fails_what_it_covers_and_no_other(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.publish("b")

    prompt.finish(BROKEN)
    assert prompt.settled == [("a", BROKEN)]
    assert prompt.state is SyncState.RUNNING  # for "b", at once
    prompt.finish()

    assert prompt.settled == [("a", BROKEN), ("b", None)]
    assert prompt.outcomes == [BROKEN, None]


def test_after_a_failed_group_commit_a_full_sync_follows_as_soon_as_before(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.scheduler.advance(0.04)

    prompt.finish(BROKEN)

    assert prompt.timer_delays == [pytest.approx(PROMPT_METADATA_S - 0.04)]


def test_records_that_are_safe_are_acknowledged_though_the_metadata_failed(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()

    prompt.finish(BROKEN, are_records_safe=True)

    assert (prompt.settled, prompt.outcomes) == ([("a", None)], [BROKEN])


def test_records_in_a_new_file_are_not_safe_before_its_directory(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.queue.jobs[-1].has_new_files = True

    prompt.finish(BROKEN, are_records_safe=True)

    assert prompt.settled == [("a", BROKEN)]


def test_a_sync_of_records_does_not_make_up_for_metadata_that_failed(prompt: Rig) -> None:
    prompt.commit()
    prompt.scheduler.advance(PROMPT_METADATA_S)
    assert prompt.kinds == ["full"]
    prompt.finish(BROKEN, are_records_safe=True)
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.finish()
    assert prompt.kinds == ["full", "records"]
    assert prompt.outcomes == [BROKEN]
    prompt.publish("b")
    prompt.scheduler.settle()
    prompt.finish(BROKEN)  # nor is it forgotten when a sync of records fails too
    prompt.publish("c")
    prompt.scheduler.settle()
    prompt.finish()
    assert prompt.outcomes == [BROKEN, BROKEN]

    prompt.scheduler.advance(PROMPT_METADATA_S)
    prompt.finish()

    assert prompt.kinds[-1] == "full"
    assert prompt.outcomes == [BROKEN, BROKEN, None]


def test_a_sync_of_records_makes_up_for_records_that_failed(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.finish(BROKEN)
    prompt.publish("b")
    prompt.scheduler.settle()

    prompt.finish()

    assert prompt.kinds == ["records", "records"]
    assert prompt.outcomes == [BROKEN, None]


# --- the end


@pytest.mark.parametrize("state", [SyncState.IDLE, SyncState.WAITING, SyncState.STARTING])
def test_no_sync_starts_after_stop(state: SyncState) -> None:
    rig = Rig(is_group_commit=state is SyncState.STARTING)
    if state is SyncState.WAITING:
        rig.append()
    elif state is SyncState.STARTING:
        rig.publish("a")
    assert rig.state is state

    rig.schedule.stop()
    rig.append()
    rig.publish("b")
    rig.scheduler.advance(100)

    assert (rig.state, rig.kinds, rig.timer_delays) == (SyncState.CLOSED, [], [])
    assert rig.settled == []


def test_a_sync_that_ends_after_stop_is_left_to_the_close(prompt: Rig) -> None:
    prompt.publish("a")
    prompt.scheduler.settle()
    prompt.schedule.stop()

    prompt.finish()
    prompt.scheduler.advance(100)

    assert (prompt.state, prompt.kinds) == (SyncState.CLOSED, ["records"])
    assert (prompt.queue.errors, prompt.settled) == ([], [])
    assert prompt.sync_times.count == 1


@pytest.mark.parametrize("refusal", [None, NO_DESCRIPTORS])
@pytest.mark.parametrize("has_job", [True, False])
def test_the_owner_of_a_receipt_may_stop_the_schedule(
    prompt: Rig, refusal: OSError | None, *, has_job: bool
) -> None:
    prompt.publish("a", then=prompt.schedule.stop)
    if not has_job:
        prompt.queue.append_count = 0
        prompt.queue.refusal = refusal
    prompt.scheduler.settle()
    if has_job:
        prompt.publish("b")
        prompt.finish(refusal)
    prompt.scheduler.advance(100)

    assert prompt.state is SyncState.CLOSED
    assert prompt.timer_delays == []
    assert len(prompt.queue.jobs) == has_job


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: everything becomes durable in time, and receipts tell the truth."""

    @initialize(is_group_commit=st.booleans())
    def start(self, is_group_commit: bool) -> None:  # noqa: FBT001 - drawn
        self.rig = Rig(is_group_commit=is_group_commit)
        self.number = 0

    @rule()
    def append(self) -> None:
        self.rig.append()

    @rule()
    def commit(self) -> None:
        self.rig.commit()

    @rule()
    def publish(self) -> None:
        self.number += 1
        self.rig.publish(str(self.number))

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.1, 1.0, 2.0]))
    def advance(self, seconds: float) -> None:
        self.rig.scheduler.advance(seconds)

    @precondition(lambda self: self.rig.scheduler.held_work)
    @rule(error=st.sampled_from([None, None, BROKEN]))
    def finish(self, error: OSError | None) -> None:
        self.rig.finish(error)

    @rule()
    def refuse_jobs(self) -> None:
        self.rig.queue.refusal = NO_DESCRIPTORS

    @rule()
    def allow_jobs(self) -> None:
        self.rig.queue.refusal = None

    @invariant()
    def a_timer_is_set_while_it_waits_and_never_else(self) -> None:
        is_waiting = self.rig.state is SyncState.WAITING
        assert len(self.rig.scheduler.pending_timers) == is_waiting
        assert len(self.rig.scheduler.held_work) == (self.rig.state is SyncState.RUNNING)

    @invariant()
    def nothing_that_has_to_be_synced_is_forgotten(self) -> None:
        if self.rig.state is SyncState.IDLE:
            assert self.rig.queue.unsynced_count == 0

    @invariant()
    def receipts_are_settled_in_order(self) -> None:
        names = [int(name) for name, _ in self.rig.settled]
        assert names == list(range(1, len(names) + 1))

    def teardown(self) -> None:
        rig = self.rig
        rig.queue.refusal = None
        for _ in range(5):
            rig.scheduler.advance(TIMEOUT_S)
            while rig.scheduler.held_work:
                rig.finish()
        assert rig.state is SyncState.IDLE
        assert rig.queue.unsynced_count == 0
        assert len(rig.settled) == self.number
        assert rig.outcomes[-1:] in ([], [None])


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=30)


def sync_fully(rig: Rig) -> list[Exception | None]:
    """Return the list that the outcome is added to."""
    outcomes: list[Exception | None] = []
    receipt = Receipt(1)
    receipt.when_done(outcomes.append)
    rig.schedule.sync_fully(receipt)
    return outcomes


@pytest.mark.parametrize("is_group_commit", [False, True])
def test_a_full_sync_that_is_asked_for_starts_at_the_end_of_the_turn(
    is_group_commit: bool,  # noqa: FBT001
) -> None:
    rig = Rig(is_group_commit=is_group_commit)
    rig.queue.commit_count = 1
    outcomes = sync_fully(rig)

    rig.scheduler.turn()
    assert rig.queue.jobs[-1].metadata is not None
    assert outcomes == []
    rig.scheduler.finish_thread()
    rig.scheduler.settle()

    assert outcomes == [None]
    assert rig.schedule.state is SyncState.IDLE


def test_a_full_sync_that_is_asked_for_while_one_runs_is_the_next() -> None:
    rig = Rig()
    rig.queue.commit_count = 1
    first = sync_fully(rig)
    rig.scheduler.turn()
    rig.queue.commit_count += 1
    second = sync_fully(rig)

    rig.scheduler.finish_thread()
    rig.scheduler.settle()
    assert (first, second) == ([None], [])
    rig.scheduler.finish_thread()
    rig.scheduler.settle()

    assert second == [None]
    assert len(rig.queue.jobs) == 2


def test_a_full_sync_that_fails_is_told_and_tried_again() -> None:
    rig = Rig()
    rig.queue.commit_count = 1
    outcomes = sync_fully(rig)
    rig.scheduler.turn()
    rig.scheduler.finish_thread(BROKEN)
    rig.scheduler.settle()

    assert outcomes == [BROKEN]
    rig.scheduler.advance(TIMEOUT_S)

    assert len(rig.queue.jobs) == 2


def test_a_full_sync_that_cannot_begin_or_has_no_work_settles_the_receipt() -> None:
    rig = Rig()
    rig.queue.refusal = NO_DESCRIPTORS
    refused = sync_fully(rig)
    rig.scheduler.turn()
    rig.queue.refusal = None
    idle = sync_fully(rig)
    rig.scheduler.settle()

    assert refused == [NO_DESCRIPTORS]
    assert idle == [None]
