"""What has arrived of a topic, across its deletion and removals from the store."""

import pytest

from diskqueue.layout import Metadata
from spark_jobs.ship.ledger import Ledger, LedgerError, Shipped, parse_ledger


def shipped(number: int, source_number: int = 0) -> Shipped:
    return Shipped(number, "g", source_number, 100, "hash", 5, 1, 2)


def test_a_ledger_is_read_as_it_was_written() -> None:
    ledger = Ledger("t")
    ledger.adopt("g1", 3)
    # A stream that begins before anything has arrived misses nothing.
    assert ledger.metadata() == Metadata(0, 3, 0, 3, 0)
    ledger.add(shipped(3))

    assert parse_ledger("t", ledger.to_json()) == ledger
    assert ledger.metadata() == Metadata(5, 3, 0, 4, 0)


def test_a_queue_made_anew_follows_the_old_one() -> None:
    ledger = Ledger("t")
    ledger.adopt("g1", 3)
    ledger.add(shipped(3 + ledger.base))
    ledger.add(shipped(4 + ledger.base))

    ledger.adopt("g2", 1)

    assert 1 + ledger.base == 5


def test_the_oldest_may_be_removed_from_the_store_and_no_others() -> None:
    ledger = Ledger("t")
    for number in range(4):
        ledger.add(shipped(number))
    files = {ledger.file_name(1): 100, ledger.file_name(3): 99}

    assert ledger.forget_removed(files) == 1
    assert ledger.find_wrong(files) == [ledger.file_name(2), ledger.file_name(3)]
    assert ledger.metadata() == Metadata(15, 1, 0, 4, 0)
    assert ledger.forget_removed({}) == 3
    assert ledger.metadata() == Metadata(0, 4, 0, 4, 0)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"version": 2}', b'{"version": 1, "topic": "x"}'])
def test_a_ledger_that_is_none(text: bytes) -> None:
    with pytest.raises(LedgerError, match=r"t\.shipped\.json"):
        parse_ledger("t", text)
