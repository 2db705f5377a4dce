from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.broker.deferred import MAX_DUE_TOGETHER, Deferred
from nsqd.broker.queue.batch import Message
from tests.support.fake_scheduler import FakeScheduler


class Rig:
    """A Deferred, and the messages that were due, each with the time."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.start = self.scheduler.now
        self.due: list[tuple[float, bytes]] = []
        self.deferred = Deferred(self.scheduler, self._on_due)

    def _on_due(self, messages: list[Message]) -> None:
        now = self.scheduler.now - self.start
        self.due += [(now, message[3]) for message in messages]

    def add(self, delay_s: float, *bodies: bytes) -> None:
        messages: list[Message] = [(b"id", 0, 0, body, None) for body in bodies]
        self.deferred.add(messages, self.scheduler.now + delay_s)


def test_a_message_is_due_exactly_on_time() -> None:
    # W-63, W-91, Q-23, Q-24 improved
    rig = Rig()
    rig.add(0.5, b"a")

    rig.scheduler.advance(0.499)
    assert rig.due == []
    assert len(rig.deferred) == 1
    rig.scheduler.advance(0.001)

    assert [body for _, body in rig.due] == [b"a"]
    assert len(rig.deferred) == 0
    assert rig.scheduler.pending_timers == []


def test_an_earlier_message_moves_the_timer() -> None:
    rig = Rig()
    rig.add(10, b"late")
    rig.add(1, b"early")
    assert len(rig.scheduler.pending_timers) == 1

    rig.scheduler.advance(1)
    assert rig.due == [(1, b"early")]
    rig.scheduler.advance(9)
    assert rig.due == [(1, b"early"), (10, b"late")]


def test_messages_of_one_due_time_keep_their_order() -> None:
    rig = Rig()
    rig.add(1, b"z", b"y", b"x")

    rig.scheduler.advance(1)

    assert rig.due == [(1, b"z"), (1, b"y"), (1, b"x")]


def test_drop_forgets_what_is_left_and_stops_the_timer() -> None:
    #
    rig = Rig()
    rig.add(3, b"c")
    rig.add(1, b"a")
    rig.add(2, b"b")
    rig.scheduler.advance(1)

    assert [(due - 1000, message[3]) for due, message in rig.deferred] == [(2, b"b"), (3, b"c")]
    rig.deferred.drop()
    assert len(rig.deferred) == 0
    assert rig.scheduler.pending_timers == []

    rig.add(1, b"d")
    rig.scheduler.advance(1)
    assert [body for _, body in rig.due] == [b"a", b"d"]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=30))
def test_every_message_is_due_once_and_in_time(steps: list[tuple[int, int]]) -> None:
    rig = Rig()
    expected = []
    for number, (wait_s, delay_s) in enumerate(steps):
        rig.scheduler.advance(wait_s)
        rig.add(delay_s, b"%d" % number)
        expected.append((rig.scheduler.now - rig.start + delay_s, number))

    rig.scheduler.advance(30)

    assert rig.due == [(when, b"%d" % number) for when, number in sorted(expected)]


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def releasing_rig(*bodies: bytes, others: tuple[bytes, ...] = ()) -> Rig:
    """Return a rig whose messages are due together, of which the first slice has left."""
    rig = Rig()
    rig.scheduler.has_tiny_slices = True
    rig.add(1, *bodies)
    rig.add(2, *others)
    timer = rig.scheduler.pending_timers[0]
    rig.scheduler.now += 1
    timer.fire()
    assert rig.due == []  # other channels may have as many: not even the first slice leaves at once
    rig.scheduler.turn()
    return rig


def test_many_messages_leave_in_slices_and_in_order() -> None:
    bodies = numbered(3 * MAX_DUE_TOGETHER + 1)
    rig = releasing_rig(*bodies, others=(b"later",))

    assert [body for _, body in rig.due] == bodies[:MAX_DUE_TOGETHER]
    assert len(rig.deferred) == len(bodies) + 1 - MAX_DUE_TOGETHER
    assert [message[3] for _, message in rig.deferred] == [*bodies[MAX_DUE_TOGETHER:], b"later"]
    rig.scheduler.settle()

    assert [body for _, body in rig.due] == bodies
    rig.scheduler.advance(1)
    assert [body for _, body in rig.due] == [*bodies, b"later"]
    assert (len(rig.deferred), rig.deferred.size_bytes) == (0, 0)
    assert rig.scheduler.pending_timers == []


def test_messages_of_many_due_times_leave_together() -> None:
    rig = Rig()
    rig.scheduler.has_tiny_slices = True
    bodies = numbered(2 * MAX_DUE_TOGETHER)
    for index, body in enumerate(bodies):
        rig.add(1 + index / 1e6, body)
    timer = rig.scheduler.pending_timers[0]
    rig.scheduler.now += 2
    timer.fire()

    rig.scheduler.turn()
    assert [body for _, body in rig.due] == bodies[:MAX_DUE_TOGETHER]
    rig.scheduler.settle()

    assert [body for _, body in rig.due] == bodies


def test_messages_added_between_two_slices_wait_for_their_own_time() -> None:
    bodies = numbered(2 * MAX_DUE_TOGETHER)
    rig = releasing_rig(*bodies)

    rig.add(0.5, b"new")
    rig.scheduler.settle()
    assert [body for _, body in rig.due] == bodies
    rig.scheduler.advance(0.5)

    assert rig.due[-1] == (1.5, b"new")


def test_nothing_leaves_after_a_drop_between_two_slices() -> None:
    bodies = numbered(2 * MAX_DUE_TOGETHER)
    rig = releasing_rig(*bodies)
    rig.due.clear()

    assert [message[3] for _, message in rig.deferred] == bodies[MAX_DUE_TOGETHER:]
    rig.deferred.drop()
    rig.scheduler.settle()

    assert (len(rig.deferred), rig.deferred.size_bytes) == (0, 0)
    assert rig.due == []
    assert rig.scheduler.pending_timers == []


def test_the_last_add_can_be_undone() -> None:
    rig = Rig()
    rig.add(1, b"a")
    size_bytes = rig.deferred.size_bytes
    rig.add(1, b"b", b"c")
    rig.deferred.undo_add()
    assert (len(rig.deferred), rig.deferred.size_bytes) == (1, size_bytes)
    rig.add(0.5, b"alone")
    rig.deferred.undo_add()

    rig.scheduler.advance(2)

    assert rig.due == [(1, b"a")]
    assert rig.deferred.size_bytes == 0


def test_an_add_of_nothing_can_be_undone() -> None:
    rig = Rig()
    rig.add(1, b"a")
    rig.add(1)
    rig.deferred.undo_add()

    rig.scheduler.advance(1)

    assert rig.due == [(1, b"a")]


def test_no_timer_is_set_while_messages_leave() -> None:
    scheduler = FakeScheduler()
    scheduler.has_tiny_slices = True
    message: Message = (b"id", 0, 0, b"body", None)
    timer_counts: list[int] = []

    def on_due(messages: list[Message]) -> None:
        if len(messages) == MAX_DUE_TOGETHER:
            deferred.add([message], scheduler.now + 5)
        timer_counts.append(len(scheduler.pending_timers))

    deferred = Deferred(scheduler, on_due)
    deferred.add([message] * (2 * MAX_DUE_TOGETHER), scheduler.now + 1)

    scheduler.advance(1)
    assert timer_counts == [0, 0]
    assert len(scheduler.pending_timers) == 1
    scheduler.advance(5)

    assert len(deferred) == 0
    assert scheduler.pending_timers == []
