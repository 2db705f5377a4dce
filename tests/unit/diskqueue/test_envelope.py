"""The message inside a record."""

import shutil
from collections.abc import Callable
from struct import pack
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue import envelope
from tests.unit.diskqueue.queue_files import payload

Join: TypeAlias = Callable[[bytes, list[bytes], tuple[bytes, ...]], bytes]


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


@pytest.mark.parametrize("join", [envelope.join_records, envelope.join_records_in_python])
@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=30)
    | st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=30)
)
def test_joined_records_are_those_of_the_single_messages(join: Join, bodies: list[bytes]) -> None:
    tails = [b"%03x" % number for number in range(len(bodies))]

    found = join(pack(">qH", 17, 0) + b"a" * 13, tails, tuple(bodies))

    payloads = [
        envelope.encode(17, 0, b"a" * 13 + tail, body)
        for tail, body in zip(tails, bodies, strict=True)
    ]
    assert found == b"".join(pack(">i", len(payload)) + payload for payload in payloads)


def test_the_compiled_loop_refuses_what_are_no_bytes() -> None:
    compiled = pytest.importorskip("diskqueue._compiled")

    with pytest.raises(ValueError, match="as many tails"):
        compiled.join_records(b"head", [b"tail"], (b"one", b"two"))
    for bodies in ((None,), ("text",), (bytearray(b"a"),)):
        with pytest.raises(TypeError):
            compiled.join_records(b"head", [b"tail"], bodies)
