from hypothesis import given, settings
from hypothesis import strategies as st

from nsqd.broker.deferred import Deferred
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


def test_clear_returns_what_is_left_earliest_first_and_stops_the_timer() -> None:
    #
    rig = Rig()
    rig.add(3, b"c")
    rig.add(1, b"a")
    rig.add(2, b"b")
    rig.scheduler.advance(1)

    assert [(due - 1000, message[3]) for due, message in rig.deferred.clear()] == [
        (2, b"b"),
        (3, b"c"),
    ]
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
