"""The count that queues share."""

from diskqueue.checksums.failures import ChecksumFailures


def test_nothing_has_failed_at_first() -> None:
    assert ChecksumFailures().count == 0
