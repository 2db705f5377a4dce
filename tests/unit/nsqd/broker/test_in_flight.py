from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsqd.broker.in_flight import MAX_EXPIRED_TOGETHER, MAX_NOTED_IDS, Entry, InFlight
from nsqd.broker.queue.batch import Batch, Message, Origin, Piece
from tests.support.fake_scheduler import FakeScheduler

TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 150.0


class Rig:
    """An InFlight that is filled as a channel fills it, and the messages that expired."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self.scheduler = FakeScheduler()
        self.expired: list[Message] = []
        self.in_flight = InFlight(self.scheduler, self.expired.extend)
        self._timeout_s = timeout_s

    def add(self, *ids: bytes, body: bytes = b"body", attempts: int = 1) -> None:
        self._fill(self.in_flight.add, ids, body, attempts)

    def add_any(self, *ids: bytes, body: bytes = b"body", attempts: int = 1) -> None:
        self._fill(self.in_flight.add_any, ids, body, attempts)

    def _fill(
        self,
        add: Callable[[tuple[bytes, ...], list[Entry], float], None],
        ids: tuple[bytes, ...],
        body: bytes,
        attempts: int,
    ) -> None:
        now = self.scheduler.time()
        deadline = now + self._timeout_s
        add(ids, [(deadline, now, 5, attempts, body, None)] * len(ids), deadline)

    def touch(self, message_id: bytes) -> bool:
        deadline = self.scheduler.time() + self._timeout_s
        return self.in_flight.touch(message_id, deadline, MAX_TIMEOUT_S)

    def expired_ids(self) -> list[bytes]:
        ids = [message[0] for message in self.expired]
        self.expired.clear()
        return ids


def test_a_message_expires_at_its_deadline_and_not_before() -> None:
    # W-99, Q-24 improved: exact from the first second on
    rig = Rig()
    rig.add(b"a", attempts=3)

    rig.scheduler.advance(TIMEOUT_S - 0.001)
    assert rig.expired == []
    assert len(rig.in_flight) == 1

    rig.scheduler.advance(0.001)
    assert rig.expired == [(b"a", 5, 3, b"body", None)]
    assert len(rig.in_flight) == 0


def test_messages_expire_in_the_order_of_their_deadlines() -> None:
    rig = Rig()
    rig.add(b"a", b"b")
    rig.scheduler.advance(10)
    rig.add(b"c")

    rig.scheduler.advance(50)
    assert rig.expired_ids() == [b"a", b"b"]
    rig.scheduler.advance(9.999)
    assert rig.expired_ids() == []
    rig.scheduler.advance(0.001)
    assert rig.expired_ids() == [b"c"]


def test_one_timer_serves_any_number_of_messages() -> None:
    rig = Rig()
    for number in range(100):
        rig.add(b"%d" % number)
        rig.scheduler.advance(0.01)

    assert len(rig.scheduler.pending_timers) == 1


def test_no_timer_is_left_when_nothing_is_in_flight() -> None:
    rig = Rig()
    rig.add(b"a")
    assert rig.in_flight.pop(b"a") is not None

    rig.scheduler.advance(TIMEOUT_S)

    assert rig.expired == []
    assert rig.scheduler.pending_timers == []


def test_pop_gives_a_message_once() -> None:
    rig = Rig()
    rig.add(b"a", b"b")

    entry = rig.in_flight.pop(b"a")

    assert entry is not None
    assert entry[3:] == (1, b"body", None)
    assert rig.in_flight.pop(b"a") is None
    assert rig.in_flight.pop_all([b"x", b"b"]) == [None, entry]


def test_touch_gives_the_full_timeout_again() -> None:
    # W-97
    rig = Rig()
    rig.add(b"a", b"b")

    rig.scheduler.advance(50)
    assert rig.touch(b"a")
    rig.scheduler.advance(10)
    assert rig.expired_ids() == [b"b"]
    rig.scheduler.advance(49.999)
    assert rig.expired_ids() == []
    rig.scheduler.advance(0.001)
    assert rig.expired_ids() == [b"a"]


def test_touch_of_what_is_not_there_says_so() -> None:
    # W-95
    rig = Rig()
    rig.add(b"a")

    assert not rig.touch(b"x")
    assert len(rig.in_flight) == 1


def test_touch_cannot_exceed_the_maximum_since_delivery() -> None:
    # W-98: delivered at 0, touched at 50, 100 and 145: the end is at 150
    rig = Rig()
    rig.add(b"a")
    for seconds in (50, 50, 45):
        rig.scheduler.advance(seconds)
        assert rig.touch(b"a")

    rig.scheduler.advance(4.999)
    assert rig.expired_ids() == []
    rig.scheduler.advance(0.001)
    assert rig.expired_ids() == [b"a"]


def test_a_capped_touch_does_not_disturb_the_other_deadlines() -> None:
    # W-98: the order of insertion is no longer that of the deadlines
    rig = Rig()
    rig.add(b"old")
    for seconds in (50, 50):
        rig.scheduler.advance(seconds)
        assert rig.touch(b"old")
    rig.scheduler.advance(40)
    rig.add(b"new")
    rig.scheduler.advance(1)
    rig.touch(b"old")  # to 150, now behind "new", which is due at 200

    rig.scheduler.advance(8.999)
    assert rig.expired_ids() == []
    rig.scheduler.advance(0.001)
    assert rig.expired_ids() == [b"old"]
    rig.scheduler.advance(49.999)
    assert rig.expired_ids() == []
    rig.scheduler.advance(0.001)
    assert rig.expired_ids() == [b"new"]


def test_a_touch_that_shortens_the_deadline_is_obeyed() -> None:
    # A timeout beyond max-msg-timeout is cut by the first TOUCH, as in nsqd.
    rig = Rig(timeout_s=400)
    rig.add(b"a", b"b")
    rig.scheduler.advance(1)
    assert rig.touch(b"a")
    assert len(rig.scheduler.pending_timers) == 1

    rig.scheduler.advance(148.999)
    assert rig.expired_ids() == []
    rig.scheduler.advance(0.001)
    assert rig.expired_ids() == [b"a"]
    rig.scheduler.advance(250)
    assert rig.expired_ids() == [b"b"]


def test_twins_are_both_kept() -> None:
    rig = Rig()
    rig.add_any(b"a", body=b"first")
    rig.add_any(b"b", b"a", body=b"second")

    assert rig.in_flight.twin_count == 1
    assert len(rig.in_flight) == 3
    popped = [rig.in_flight.pop(b"a") for _ in range(3)]
    assert [entry and entry[4] for entry in popped] == [b"first", b"second", None]
    assert len(rig.in_flight) == 1


def test_twins_within_one_delivery_are_both_kept() -> None:
    rig = Rig()
    rig.add_any(b"a", b"a", b"a")

    assert len(rig.in_flight) == 3
    assert rig.in_flight.pop_all([b"a"] * 4).count(None) == 1
    assert len(rig.in_flight) == 0


def test_twins_expire_each_at_its_own_deadline() -> None:
    rig = Rig()
    rig.add_any(b"a", body=b"first")
    rig.scheduler.advance(10)
    rig.add_any(b"a", body=b"second")
    rig.add_any(b"b")

    rig.scheduler.advance(50)
    assert [message[3] for message in rig.expired] == [b"first"]
    rig.scheduler.advance(9.999)
    assert len(rig.expired) == 1
    rig.scheduler.advance(0.001)
    assert sorted(message[3] for message in rig.expired) == [b"body", b"first", b"second"]


def test_a_twin_that_was_due_behind_a_touched_one_expires_when_that_is_gone() -> None:
    rig = Rig()
    rig.add_any(b"a", body=b"first")
    rig.add_any(b"a", body=b"second")
    rig.scheduler.advance(50)
    rig.touch(b"a")
    rig.scheduler.advance(20)
    assert rig.in_flight.pop(b"a") is not None

    rig.scheduler.advance(0)

    assert [message[3] for message in rig.expired] == [b"second"]


@pytest.mark.parametrize("count", [1, 3])
def test_drop_forgets_everything_and_stops_the_timer(count: int) -> None:
    #
    rig = Rig()
    rig.add_any(*[b"a"] * count, b"b", attempts=4)

    messages = list(rig.in_flight)
    rig.in_flight.drop()

    assert sorted(messages) == [(b"a", 5, 4, b"body", None)] * count + [(b"b", 5, 4, b"body", None)]
    assert len(rig.in_flight) == 0
    assert rig.in_flight.twin_count == 0
    assert rig.scheduler.pending_timers == []
    rig.scheduler.advance(TIMEOUT_S * 2)
    assert rig.expired == []


def test_order_is_restored_when_nothing_is_in_flight() -> None:
    rig = Rig()
    rig.add(b"a")
    for seconds in (50, 50, 45):
        rig.scheduler.advance(seconds)
        rig.touch(b"a")
    rig.scheduler.advance(5)
    assert rig.expired_ids() == [b"a"]

    rig.add(b"b")
    rig.scheduler.advance(TIMEOUT_S)

    assert rig.expired_ids() == [b"b"]


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def sliced_rig(count: int) -> Rig:
    """Return a rig whose messages, all of one deadline, have begun to expire."""
    rig = Rig()
    rig.scheduler.has_tiny_slices = True
    rig.add(*numbered(count))
    rig.scheduler.advance(TIMEOUT_S - 0.001)
    timer = rig.scheduler.pending_timers[0]
    rig.scheduler.now += 0.001
    timer.fire()
    return rig


def test_many_messages_expire_in_slices_and_in_order() -> None:
    count = 2 * MAX_NOTED_IDS + 10
    rig = sliced_rig(count)
    assert rig.expired == []  # others may have as many: not even the first slice is done at once

    rig.scheduler.turn()
    assert rig.expired_ids() == numbered(count)[:MAX_EXPIRED_TOGETHER]
    rig.scheduler.settle()

    assert rig.expired_ids() == numbered(count)[MAX_EXPIRED_TOGETHER:]
    assert len(rig.in_flight) == 0
    assert rig.scheduler.pending_timers == []


def test_a_message_can_be_answered_until_its_slice_comes() -> None:
    count = 3 * MAX_EXPIRED_TOGETHER
    ids = numbered(count)
    rig = sliced_rig(count)
    rig.scheduler.turn()

    assert rig.in_flight.pop(ids[-1]) is not None
    assert rig.touch(ids[-2])
    assert rig.in_flight.pop(ids[0]) is None
    rig.scheduler.settle()

    assert rig.expired_ids() == ids[:-2]
    rig.scheduler.advance(TIMEOUT_S)
    assert rig.expired_ids() == [ids[-2]]


def test_a_delivery_between_two_slices_has_its_own_deadline() -> None:
    rig = sliced_rig(2 * MAX_EXPIRED_TOGETHER)
    rig.scheduler.turn()

    rig.add(b"new")
    rig.scheduler.settle()
    assert b"new" not in rig.expired_ids()
    assert len(rig.in_flight) == 1
    rig.scheduler.advance(TIMEOUT_S)

    assert rig.expired_ids() == [b"new"]


def test_the_next_timer_is_set_when_the_last_slice_is_over() -> None:
    rig = sliced_rig(2 * MAX_EXPIRED_TOGETHER)
    rig.scheduler.turn()

    rig.add(b"new")
    assert rig.scheduler.pending_timers == []
    rig.scheduler.settle()

    assert len(rig.scheduler.pending_timers) == 1


@pytest.mark.parametrize("end", ["drop", "close"])
def test_nothing_expires_after_the_end_between_two_slices(end: str) -> None:
    count = 2 * MAX_EXPIRED_TOGETHER
    rig = sliced_rig(count)
    rig.scheduler.turn()
    rig.expired.clear()

    left = len(rig.in_flight)
    getattr(rig.in_flight, end)()
    rig.scheduler.settle()

    assert left == MAX_EXPIRED_TOGETHER
    assert len(rig.in_flight) == 0
    assert rig.expired == []
    assert rig.scheduler.pending_timers == []


def test_consumers_expire_side_by_side() -> None:
    scheduler = FakeScheduler()
    scheduler.has_tiny_slices = True
    count = 3 * MAX_EXPIRED_TOGETHER
    expired: list[list[Message]] = [[], []]
    for messages in expired:
        in_flight = InFlight(scheduler, messages.extend)
        in_flight.add(numbered(count), [(1060.0, 1000.0, 5, 1, b"", None)] * count, 1060.0)
    for timer in scheduler.pending_timers:
        scheduler.now = 1060.0
        timer.fire()

    for slices in (1, 2, 3):
        scheduler.turn()
        assert [len(messages) for messages in expired] == [slices * MAX_EXPIRED_TOGETHER] * 2


def test_touches_at_the_limit_leave_nothing_behind() -> None:
    rig = Rig()
    for number in range(5000):
        message_id = b"%d" % number
        rig.add(message_id)
        rig.scheduler.now += MAX_TIMEOUT_S - TIMEOUT_S + 1
        assert rig.touch(message_id)
        assert rig.touch(message_id)
        rig.in_flight.pop(message_id)
        rig.scheduler.now -= MAX_TIMEOUT_S - TIMEOUT_S + 1

    rig.scheduler.advance(2 * MAX_TIMEOUT_S)

    assert rig.expired == []
    assert rig.scheduler.pending_timers == []


class InFlightAgainstAList(RuleBasedStateMachine):
    """Ids from a small set, so that twins are common; a list of those that should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.rig.scheduler.has_tiny_slices = True
        # id, deadline, time of delivery; of twins the first one is the one that is answered
        self.model: list[tuple[bytes, float, float]] = []

    @rule(ids=st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3))
    def deliver(self, ids: list[bytes]) -> None:
        self.rig.add_any(*ids)
        now = self.rig.scheduler.now
        self.model += [(message_id, now + TIMEOUT_S, now) for message_id in ids]

    @rule(message_id=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def finish(self, message_id: bytes) -> None:
        is_here = any(entry[0] == message_id for entry in self.model)

        assert (self.rig.in_flight.pop(message_id) is not None) == is_here
        self._drop_first(message_id)

    @rule(message_id=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def touch(self, message_id: bytes) -> None:
        for index, (other, _, delivered) in enumerate(self.model):
            if other == message_id:
                deadline = self.rig.scheduler.now + TIMEOUT_S
                deadline = min(deadline, delivered + MAX_TIMEOUT_S)
                self.model[index] = (message_id, deadline, delivered)
                assert self.rig.touch(message_id)
                return
        assert not self.rig.touch(message_id)

    @rule(seconds=st.sampled_from([0, 1, 13, 29, 47, 60]))
    def wait(self, seconds: int) -> None:
        # A step at a time: a twin can only expire once the one before it is gone.
        for _ in range(seconds):
            self.rig.scheduler.advance(1)
            self._expire()

    def _expire(self) -> None:
        now = self.rig.scheduler.now
        expired = []
        for message_id in [b"a", b"b", b"c", b"d"]:
            twins = [entry for entry in self.model if entry[0] == message_id]
            while twins and twins[0][1] <= now:
                expired.append(twins.pop(0)[0])
                self._drop_first(message_id)
        assert sorted(self.rig.expired_ids()) == expired

    @rule()
    def empty(self) -> None:
        self.rig.in_flight.drop()
        self.model = []

    def _drop_first(self, message_id: bytes) -> None:
        for index, entry in enumerate(self.model):
            if entry[0] == message_id:
                del self.model[index]
                return

    @invariant()
    def the_count_is_right(self) -> None:
        assert len(self.rig.in_flight) == len(self.model)
        assert len(self.rig.scheduler.pending_timers) <= 1
        ids = [message[0] for message in self.rig.in_flight]
        assert sorted(ids) == sorted(entry[0] for entry in self.model)
        assert self.rig.in_flight.twin_count == len(ids) - len(set(ids))


TestInFlightAgainstAList = InFlightAgainstAList.TestCase
TestInFlightAgainstAList.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize(
    ("origin", "has_records"),
    [(Origin.MEMORY, False), (Origin.WRITTEN, True), (Origin.RETURNED, False)],
)
def test_a_piece_is_noted_message_by_message(origin: Origin, *, has_records: bool) -> None:
    rig = Rig()
    batch = Batch(7, b"0" * 13, 0, (b"x", b"one", b"two", b"y"))
    piece = Piece(batch, 1, 3, origin, range(10, 14) if has_records else None)
    told: list[tuple[list[bytes], list[Entry]]] = []
    rig.in_flight.on_change = lambda ids, entries: told.append((ids, entries))

    rig.in_flight.add_piece(piece, batch.ids(1, 3), batch.bodies[1:3], 100.0, 160.0)

    assert told == [([], [])]  # as it was before
    ordinals = (11, 12) if has_records else (None, None)
    assert rig.in_flight.entries == {
        b"0000000000000001": (160.0, 100.0, 7, 1, b"one", ordinals[0]),
        b"0000000000000002": (160.0, 100.0, 7, 1, b"two", ordinals[1]),
    }
    assert rig.in_flight.had_records is has_records
    assert len(rig.scheduler.pending_timers) == 1
