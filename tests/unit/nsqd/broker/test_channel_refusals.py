"""Why a FIN fails, for many at a time."""

import time

from nsqd.broker.channel import NOT_IN_FLIGHT, NOT_OWNER
from tests.support.channel_rig import ChannelRig


def test_each_id_of_a_run_gets_its_own_reason() -> None:
    rig = ChannelRig()
    mine, other = rig.client(ready=2), rig.client(ready=2)
    rig.put(b"a", b"b", b"c", b"d")
    rig.settle()
    my_ids = [delivery.message_id for delivery in mine.take()]
    other_ids = [delivery.message_id for delivery in other.take()]

    failed = mine.finish(my_ids[0], other_ids[0], b"0" * 16, my_ids[0], my_ids[1], other_ids[0])

    assert failed == [
        (other_ids[0], NOT_OWNER),
        (b"0" * 16, NOT_IN_FLIGHT),
        (my_ids[0], NOT_IN_FLIGHT),  # it was, the first time
        (other_ids[0], NOT_OWNER),
    ]
    assert (mine.in_flight_count, other.in_flight_count) == (0, 2)


def test_ids_of_one_who_has_left_are_in_flight_still() -> None:
    rig = ChannelRig()
    gone, mine = rig.client(ready=1), rig.client()
    rig.put(b"a")
    rig.settle()
    [delivery] = gone.take()
    gone.leave()

    assert mine.finish(delivery.message_id) == [(delivery.message_id, NOT_OWNER)]


def test_nonsense_costs_little_however_many_consumers_there_are() -> None:
    rig = ChannelRig()
    clients = [rig.client(ready=1) for _ in range(1000)]
    rig.put(*(b"%d" % number for number in range(1000)))
    rig.settle()
    ids = [b"%016x" % number for number in range(4096)]

    started = time.process_time()
    failed = clients[0].finish(*ids)

    assert len(failed) == 4096
    assert time.process_time() - started < 0.1  # 3 ms; looking for each at each took 300 ms
