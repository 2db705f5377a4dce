from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from diskqueue import envelope
from nsqd.broker.queue.batch import MAX_ATTEMPTS, Batch, MixedBatch, encode_records

PREFIX = b"0123456789abc"
NOW_NS = 1_700_000_000_000_000_000


def make_batch(*bodies: bytes, first_sequence: int = 0, delay_s: float = 0.0) -> Batch:
    return Batch(NOW_NS, PREFIX, first_sequence, bodies, delay_s)


def make_mixed(*bodies: bytes, attempts: int = 3) -> MixedBatch:
    count = len(bodies)
    return MixedBatch(
        ids=[b"%016d" % number for number in range(count)],
        timestamps=[NOW_NS + number for number in range(count)],
        attempts=[attempts + number for number in range(count)],
        bodies=bodies,
    )


def test_the_ids_of_a_batch_are_its_block() -> None:
    batch = make_batch(b"a", b"b", b"c", first_sequence=0xFFC)

    assert batch.ids(0, 3) == [PREFIX + b"ffc", PREFIX + b"ffd", PREFIX + b"ffe"]
    assert batch.ids(1, 2) == [PREFIX + b"ffd"]


def test_a_fresh_message_is_delivered_for_the_first_time() -> None:
    # W-83
    batch = make_batch(b"a", b"b", b"c")

    assert list(batch.attempts(1, 3)) == [1, 1]
    assert list(batch.timestamps(1, 3)) == [NOW_NS] * 2
    assert batch.heads(1, 3) == [pack(">qH", NOW_NS, 1)] * 2


def test_a_stored_message_is_delivered_once_more_than_before() -> None:
    # W-83
    batch = make_mixed(b"a", b"b", b"c", attempts=4)

    assert list(batch.attempts(1, 3)) == [6, 7]
    assert list(batch.timestamps(1, 3)) == [NOW_NS + 1, NOW_NS + 2]
    assert batch.heads(1, 3) == [pack(">qH", NOW_NS + 1, 6), pack(">qH", NOW_NS + 2, 7)]


def test_attempts_stop_at_their_maximum_rather_than_wrap() -> None:
    # W-106, improved
    batch = make_mixed(b"a", attempts=MAX_ATTEMPTS)

    assert list(batch.attempts(0, 1)) == [65535]
    assert batch.heads(0, 1) == [pack(">qH", NOW_NS, 65535)]


def test_a_record_holds_the_attempts_made_so_far() -> None:
    # D-3
    fresh, _ = make_batch(b"a").records(0, 1)
    stored, _ = make_mixed(b"a", attempts=3).records(0, 1)

    assert envelope.decode(fresh[4:]).attempts == 0
    assert envelope.decode(stored[4:]).attempts == 3


def test_records_are_those_of_the_disk_format() -> None:
    # D-3
    batch = make_batch(b"a", b"bcd", b"ef")

    data, lengths = batch.records(1, 3)

    first = envelope.encode(NOW_NS, 0, PREFIX + b"001", b"bcd")
    second = envelope.encode(NOW_NS, 0, PREFIX + b"002", b"ef")
    assert data == pack(">i", 29) + first + pack(">i", 28) + second
    assert lengths == [33, 32]


def test_a_part_of_a_batch_is_a_batch() -> None:
    batch = make_batch(b"a", b"bcd", b"ef", first_sequence=7, delay_s=2.5)

    part = batch.part(1, 3)

    assert part.bodies == (b"bcd", b"ef")
    assert part.body_bytes == 5
    assert part.ids(0, 2) == batch.ids(1, 3)
    assert part.timestamp_ns == NOW_NS
    assert part.remaining_s(NOW_NS) == 2.5
    assert batch.part(0, 3) is batch


def test_a_part_of_a_mixed_batch_keeps_attempts() -> None:
    batch = make_mixed(b"a", b"bcd", b"ef")

    part = batch.part(1, 3)

    assert part.messages(0, 2) == [
        (b"%016d" % 1, NOW_NS + 1, 4, b"bcd", None),
        (b"%016d" % 2, NOW_NS + 2, 5, b"ef", None),
    ]
    assert part.body_bytes == 5
    assert not part.is_deferred


def test_a_part_of_a_mixed_batch_can_have_a_due_time_of_its_own() -> None:
    batch = make_mixed(b"a", b"bcd", b"ef")

    part = batch.deferred_part(1, 2, NOW_NS + 1_500_000_000)

    assert part.messages(0, 1) == batch.messages(1, 2)
    assert part.is_deferred
    assert part.remaining_s(NOW_NS) == 1.5
    assert part.remaining_s(NOW_NS + 2_000_000_000) == 0
    assert part.part(0, 1).due_ns == part.due_ns


def test_messages_one_by_one() -> None:
    assert make_batch(b"a", b"b").messages(1, 2) == [(PREFIX + b"001", NOW_NS, 0, b"b", None)]
    assert make_mixed(b"a", b"b").messages(1, 2) == [(b"%016d" % 1, NOW_NS + 1, 4, b"b", None)]


columns = st.lists(
    st.tuples(
        st.binary(min_size=16, max_size=16),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 65535),
        st.binary(max_size=30),
    ),
    min_size=1,
    max_size=10,
)


@given(columns)
def test_what_is_written_is_read_again(messages: list[tuple[bytes, int, int, bytes]]) -> None:
    batch = MixedBatch.from_messages([(*message, None) for message in messages])

    data, lengths = batch.records(0, len(messages))
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    starts = [end - length + 4 for end, length in zip(ends, lengths, strict=True)]
    read = MixedBatch.from_records(data, starts, ends)

    assert ends[-1] == len(data)
    assert read.messages(0, len(messages)) == [(*message, None) for message in messages]
    assert read.body_bytes == sum(len(message[3]) for message in messages)


@given(columns)
def test_records_equal_the_envelope(messages: list[tuple[bytes, int, int, bytes]]) -> None:
    heads = [pack(">qH", timestamp_ns, attempts) for _, timestamp_ns, attempts, _ in messages]

    data, lengths = encode_records(
        heads, [message[0] for message in messages], [message[3] for message in messages]
    )

    payloads = [
        envelope.encode(timestamp_ns, attempts, message_id, body)
        for message_id, timestamp_ns, attempts, body in messages
    ]
    assert data == b"".join(pack(">i", len(payload)) + payload for payload in payloads)
    assert lengths == [4 + len(payload) for payload in payloads]


def test_a_record_may_have_an_empty_body() -> None:
    # D-26
    batch = MixedBatch.from_records(bytes(30), [4], [30])

    assert batch.bodies == [b""]
