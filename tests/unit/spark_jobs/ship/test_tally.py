"""Records are counted however their bytes are cut."""

import pytest

from spark_jobs.ship.tally import RecordTally
from tests.spark.data_dirs import TIME_NS, content, messages


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 49, 50, 51, 1000])
def test_records_in_pieces_of_any_size(piece_bytes: int) -> None:
    data = content(messages(0, 7))
    tally = RecordTally()

    for start in range(0, len(data), piece_bytes):
        tally.feed(data[start : start + piece_bytes])

    assert tally.message_count == 7
    assert (tally.first_ns, tally.last_ns) == (TIME_NS, TIME_NS + 6 * 1_000_007)
    assert not tally.is_damaged


def test_the_count_ends_at_damage() -> None:
    tally = RecordTally()

    tally.feed(content(messages(0, 2)) + bytes(100))

    assert tally.message_count == 2
    assert tally.is_damaged
