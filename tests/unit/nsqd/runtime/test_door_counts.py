"""Counts of a door: which reply counts as which cause."""

import pytest

from nsqd.runtime.door_counts import REFUSED, DoorCounts, Failure, Refusal


@pytest.mark.parametrize(
    ("status", "refusal"), [(401, Refusal.AUTH), (403, Refusal.AUTH), (413, Refusal.SIZE)]
)
def test_a_status_tells_the_refusal(status: int, refusal: Refusal) -> None:
    counts = DoorCounts()

    counts.note_status(status)

    assert counts.refusals == {refusal: 1}
    assert not counts.failures


def test_half_a_request_is_a_silent_connection_and_a_wrong_one_is_nothing() -> None:
    counts = DoorCounts()

    counts.note_status(408)
    counts.note_status(400)
    counts.note_status(404)

    assert counts.failures == {Failure.SILENT: 1}
    assert not counts.refusals


def test_a_connection_is_refused_before_its_first_byte_or_fails_after() -> None:
    assert {failure for failure in Failure if failure in REFUSED} == {
        Failure.TOO_MANY,
        Failure.NO_DESCRIPTORS,
    }
