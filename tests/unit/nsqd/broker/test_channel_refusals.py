"""Why a FIN fails, for many at a time."""

from nsqd.broker.consumer import NOT_IN_FLIGHT, NOT_OWNER
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


class CountedId(bytes):
    """An id that counts how often ids are looked up."""

    lookup_count = 0

    def __hash__(self) -> int:
        CountedId.lookup_count += 1
        return super().__hash__()


def test_unknown_ids_are_not_looked_up_at_each_consumer() -> None:
    rig = ChannelRig()
    clients = [rig.client(ready=1) for _ in range(1000)]
    rig.put(*(b"%d" % number for number in range(1000)))
    rig.settle()
    ids = [CountedId(b"%016x" % number) for number in range(4096)]

    failed = clients[0].finish(*ids)

    assert failed == [(message_id, NOT_IN_FLIGHT) for message_id in ids]
    assert CountedId.lookup_count <= 10 * len(ids)
