"""How many messages may be here at a time."""

from typing import cast

from nsqd.cli.sinks.budget import ByteBudget
from nsqd.client import Consumer
from tests.support.client_messages import make_message


class FakeConsumer:
    """Notes its max_in_flight."""

    max_in_flight = 0

    def set_max_in_flight(self, count: int) -> None:
        self.max_in_flight = count


def make(most: int) -> tuple[FakeConsumer, ByteBudget]:
    consumer = FakeConsumer()
    return consumer, ByteBudget(cast(Consumer, consumer), most)


def test_it_begins_with_a_few_and_doubles() -> None:
    consumer, budget = make(30)

    seen = []
    for _ in range(5):
        seen.append(consumer.max_in_flight)
        budget.grow()

    assert seen == [4, 8, 16, 30, 30]


def test_large_messages_are_fewer() -> None:
    consumer, budget = make(2500)
    for _ in range(12):
        budget.grow()

    budget.note([make_message(1, body=bytes(1 << 20))])
    assert consumer.max_in_flight == 4
    for _ in range(3):
        budget.note([make_message(1, body=b"x")])
        budget.grow()
    assert 4 < consumer.max_in_flight < 10


def test_a_pause_lasts_until_the_restart() -> None:
    consumer, budget = make(2500)

    budget.pause()
    budget.grow()
    assert consumer.max_in_flight == 0
    budget.restart()
    assert consumer.max_in_flight == 4


def test_what_the_user_wants_is_the_most() -> None:
    consumer, budget = make(3)
    budget.grow()

    assert consumer.max_in_flight == 3
