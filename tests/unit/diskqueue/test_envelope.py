"""The message inside a record."""

import shutil
from array import array
from collections.abc import Callable
from struct import pack
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue import envelope
from tests.unit.diskqueue.queue_files import payload

Join: TypeAlias = Callable[[list[envelope.RecordParts]], tuple[bytes, "array[int]"]]
JoinInto: TypeAlias = Callable[[list[envelope.RecordParts], memoryview], "array[int]"]


def test_envelope_is_the_one_of_the_specification() -> None:
    """D-3."""
    data = bytes.fromhex("18e85c1a65bd140f0003") + b"189c4d2902e69002" + b"m3"

    message = envelope.decode(data)

    assert message == envelope.Envelope(0x18E85C1A65BD140F, 3, b"189c4d2902e69002", b"m3")
    assert envelope.encode(*message) == data
    assert envelope.HEADER_BYTES == 26


def test_envelope_of_an_empty_body() -> None:
    """D-26."""
    assert envelope.decode(payload(0, 26)).body == b""


def test_envelope_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="25 bytes"):
        envelope.decode(b"x" * 25)
    with pytest.raises(ValueError, match="id of 3 bytes"):
        envelope.encode(0, 0, b"abc", b"")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_loop_over_messages_is_compiled() -> None:
    assert envelope.join_records is not envelope.join_records_in_python


bodies_of_a_publish = st.lists(st.binary(max_size=40), min_size=1, max_size=30) | st.lists(
    st.binary(min_size=3, max_size=3), min_size=1, max_size=30
)


@pytest.mark.parametrize("join", [envelope.join_records, envelope.join_records_in_python])
@given(publishes=st.lists(bodies_of_a_publish.map(tuple), max_size=5))
def test_joined_records_are_those_of_the_single_messages(
    join: Join, publishes: list[tuple[bytes, ...]]
) -> None:
    parts: list[envelope.RecordParts] = []
    records: list[bytes] = []
    for number, bodies in enumerate(publishes):
        prefix = b"%013x" % number
        tails = [b"%03x" % index for index in range(len(bodies))]
        # The ids are a part of a longer tuple.
        head = pack(">qH", 17 + number, 0) + prefix
        parts.append((head, (*[b"abc"] * number, *tails, b"rest"), number, bodies))
        for tail, body in zip(tails, bodies, strict=True):
            payload = envelope.encode(17 + number, 0, prefix + tail, body)
            records.append(pack(">i", len(payload)) + payload)

    data, lengths = join(parts)

    assert data == b"".join(records)
    assert lengths.tolist() == [len(record) for record in records]


@pytest.mark.parametrize("join", [envelope.join_records, envelope.join_records_in_python])
def test_a_large_join_is_like_a_small_one(join: Join) -> None:
    """The compiled loop lets other threads run meanwhile."""
    small: envelope.RecordParts = (b"h" * 23, (b"abc",) * 100, 0, (b"x" * 300, b"y") * 50)

    data, lengths = join([small] * 100)

    assert len(data) > 1 << 20
    assert data == join([small])[0] * 100
    assert lengths == join([small])[1] * 100


def test_the_compiled_loop_refuses_what_are_no_bytes() -> None:
    compiled = pytest.importorskip("diskqueue._compiled")

    for parts in [
        (b"head", (b"tail",), 0, (b"one", b"two")),
        (b"head", (b"tail", b"tail"), 1, (b"one", b"two")),
        (b"head", (b"tail",), -1, (b"one",)),
        (b"head", None, 0, ()),
    ]:
        with pytest.raises(ValueError, match="as many tails"):
            compiled.join_records([parts])
    others: list[Any] = [
        (b"head", (b"tail",), 0, (None,)),
        (b"head", (b"tail",), 0, ("text",)),
        (b"head", (bytearray(b"a"),), 0, (b"body",)),
        (None, (b"tail",), 0, (b"body",)),
    ]
    for parts in others:
        with pytest.raises(TypeError):
            compiled.join_records([parts])
        with pytest.raises(TypeError):
            compiled.join_records_into([parts], memoryview(bytearray(12)))
        # So many that they are measured while other threads run.
        good = (b"head", (b"tail",), 0, (b"body",))
        with pytest.raises(TypeError):
            compiled.join_records([good] * 5000 + [parts])


@pytest.mark.parametrize(
    "join_into", [envelope.join_records_into, envelope.join_records_into_in_python]
)
def test_records_are_joined_into_a_room_of_their_size(join_into: JoinInto) -> None:
    part: envelope.RecordParts = (b"h" * 23, (b"abc",) * 9, 3, (b"x" * 300, b"", b"y"))
    data, lengths = envelope.join_records_in_python([part, part])
    memory = bytearray(len(data) + 10)

    found = join_into([part, part], memoryview(memory)[4:-6])

    assert memory == bytes(4) + data + bytes(6)
    assert found == lengths
    for size in (0, len(data) - 1, len(data) + 1):
        with pytest.raises(ValueError, match="size"):
            join_into([part, part], memoryview(bytearray(size)))
