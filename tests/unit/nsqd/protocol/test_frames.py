from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from diskqueue import envelope
from nsqd.protocol import frames
from nsqd.protocol.frames import FrameType, encode_frame, encode_messages


def test_a_frame_is_size_type_and_data() -> None:
    # W-4, W-5
    assert encode_frame(FrameType.RESPONSE, b"OK") == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert encode_frame(FrameType.ERROR, b"E_X") == b"\x00\x00\x00\x07\x00\x00\x00\x01E_X"
    assert encode_frame(FrameType.RESPONSE, b"") == b"\x00\x00\x00\x04\x00\x00\x00\x00"


def test_the_fixed_responses() -> None:
    assert frames.OK[8:] == b"OK"
    assert frames.CLOSE_WAIT[8:] == b"CLOSE_WAIT"
    assert frames.HEARTBEAT[8:] == b"_heartbeat_"


messages = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65535),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=40),
)


@given(st.lists(messages, min_size=1, max_size=20))
def test_message_frames_hold_the_envelope(content: list[tuple[int, int, bytes, bytes]]) -> None:
    # W-4 to W-6
    heads = [pack(">qH", timestamp_ns, attempts) for timestamp_ns, attempts, _, _ in content]
    ids = [message_id for _, _, message_id, _ in content]
    bodies = tuple(body for _, _, _, body in content)

    parts = encode_messages(heads, ids, bodies)

    assert len(parts) == 4 * len(content)
    assert b"".join(parts) == b"".join(
        encode_frame(FrameType.MESSAGE, envelope.encode(*message)) for message in content
    )


def test_bodies_are_not_copied() -> None:
    body = bytes(100_000)

    parts = encode_messages([bytes(10)], [bytes(16)], [body])

    assert parts[3] is body


def test_the_cache_of_prefixes_is_bounded_and_right_beyond_its_bound() -> None:
    bodies = [bytes(size) for size in range(300)] + [b"x" * 300_000]
    columns = [bytes(10)] * len(bodies), [bytes(16)] * len(bodies)

    for _ in range(2):
        parts = encode_messages(*columns, bodies)

        assert parts[0::4] == [pack(">ii", 30 + len(body), 2) for body in bodies]
