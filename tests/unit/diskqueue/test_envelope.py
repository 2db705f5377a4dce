"""The message inside a record."""

import pytest

from diskqueue import envelope
from tests.unit.diskqueue.queue_files import payload


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
