"""Copies of what is in flight and deferred: of one moment, however long they take."""

import pytest

from nsqd.broker.deferred import Deferred
from nsqd.broker.in_flight import InFlight
from nsqd.broker.queue.batch import Message
from nsqd.broker.snapshot.copies import MAX_GROUP_COUNT, DeferredCopy, InFlightCopy
from tests.support.fake_scheduler import FakeScheduler

NOW = 1000.0


def messages(*numbers: int) -> list[Message]:
    return [(b"%016d" % number, 1, 0, b"body", None) for number in numbers]


def add(in_flight: InFlight, *numbers: int) -> None:
    ids = [b"%016d" % number for number in numbers]
    in_flight.add_any(ids, [(NOW + 60, NOW, 1, 1, b"body", None)] * len(ids), NOW + 60)


def in_copy(copy: InFlightCopy) -> list[int]:
    while copy.step():
        pass
    return sorted(int(each) for ids, _ in copy.iter_groups() for each in ids)


def make_in_flight(*numbers: int) -> InFlight:
    in_flight = InFlight(FakeScheduler(), lambda _messages: None)
    add(in_flight, *numbers)
    return in_flight


class TestInFlight:
    @pytest.mark.parametrize(
        "change",
        [
            lambda each: add(each, 9),
            lambda each: add(each, 1),  # a twin
            lambda each: each.pop(b"%016d" % 1),
            lambda each: each.pop_all([b"%016d" % 1, b"%016d" % 2]),
            lambda each: each.touch(b"%016d" % 1, NOW + 90, 900.0),
            lambda each: each.drop(),
            lambda each: each.close(),
        ],
        ids=["add", "twin", "pop", "pop_all", "touch", "drop", "close"],
    )
    def test_a_change_comes_after_the_copy(self, change: object) -> None:
        assert callable(change)
        first, second = make_in_flight(1, 2), make_in_flight(3)
        copy = InFlightCopy([first, second])

        change(first)

        assert in_copy(copy) == [1, 2, 3]
        assert first.on_change is second.on_change is None

    def test_an_ended_copy_asks_no_consumer_any_more(self) -> None:
        first, second = make_in_flight(1), make_in_flight(2)
        copy = InFlightCopy([first, second])

        copy.end()

        assert not copy.step()
        assert in_copy(copy) == []
        assert first.on_change is second.on_change is None

    def test_twins_are_two(self) -> None:
        assert in_copy(InFlightCopy([make_in_flight(1, 1, 2)])) == [1, 1, 2]

    def test_an_abandoned_copy_leaves_nothing_behind(self) -> None:
        in_flight = make_in_flight(1)
        copy = InFlightCopy([in_flight])

        copy.end()

        assert in_flight.on_change is None


class TestDeferred:
    def in_copy(self, copy: DeferredCopy) -> list[int]:
        while copy.step():
            pass
        return sorted(int(each[0]) for _, group in copy.iter_groups() for each in group)

    @pytest.fixture
    def scheduler(self) -> FakeScheduler:
        return FakeScheduler()

    @pytest.fixture
    def deferred(self, scheduler: FakeScheduler) -> Deferred:
        deferred = Deferred(scheduler, lambda _messages: None)
        deferred.add(messages(1, 2), NOW + 1)
        deferred.add(messages(3), NOW + 2)
        deferred.add(messages(*range(10, 700)), NOW + 3)
        return deferred

    def test_messages_that_come_leave_and_come_back(
        self, scheduler: FakeScheduler, deferred: Deferred
    ) -> None:
        everything = sorted(int(message[0]) for _, message in deferred)
        copy = deferred.begin_copy()

        deferred.add(messages(4), NOW + 1)
        deferred.add(messages(5), NOW + 7)
        deferred.add(messages(6), NOW + 7)
        deferred.undo_add()
        scheduler.advance(3.5)  # all runs have left
        deferred.add(messages(7), NOW + 3.75)

        assert self.in_copy(copy) == everything
        deferred.end_copy()
        assert [int(message[0]) for _, message in deferred] == [7, 5]

    def test_a_run_that_is_half_gone(self, scheduler: FakeScheduler, deferred: Deferred) -> None:
        gone: list[Message] = []
        deferred = Deferred(scheduler, gone.extend)
        deferred.add(messages(*range(2000)), NOW + 1)
        scheduler.has_tiny_slices = True
        scheduler.now = NOW + 1
        for timer in scheduler.pending_timers:
            timer.fire()
        scheduler.turn()
        assert 0 < len(gone) < 2000
        left = 2000 - len(gone)

        copy = deferred.begin_copy()
        scheduler.settle()

        assert len(self.in_copy(copy)) == left
        assert not len(deferred)

    def test_a_run_is_needed_until_it_was_given_out(self) -> None:
        run = messages(*range(MAX_GROUP_COUNT + 1))
        copy = DeferredCopy([NOW], {NOW: run}, 0)
        assert not copy.step()
        groups = copy.iter_groups()

        next(groups)
        assert copy.has(NOW, run)
        assert len(list(groups)) == 1

        assert not copy.has(NOW, run)

    @pytest.mark.parametrize("way", ["drop", "close"])
    def test_emptying(self, deferred: Deferred, way: str) -> None:
        everything = sorted(int(message[0]) for _, message in deferred)
        copy = deferred.begin_copy()

        dropped = deferred.drop() if way == "drop" else deferred.close()
        for container in dropped:
            container.clear()
        deferred.add(messages(8), NOW + 1)

        assert self.in_copy(copy) == everything
        assert copy.let_go(), "the copy has the runs to dispose of"
        deferred.end_copy()
