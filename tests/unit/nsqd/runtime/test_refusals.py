"""Which error of the broker counts as which refusal."""

import errno

import pytest

from nsqd.broker.errors import (
    ClosedError,
    ConsumerLimitError,
    DepthLimitError,
    DrainingError,
    LowDiskError,
)
from nsqd.runtime.door_counts import Refusal
from nsqd.runtime.refusals import find_refusal


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (DepthLimitError("full", 0), Refusal.QUEUE_FULL),
        (DrainingError(), Refusal.DRAINING),
        (ClosedError(), Refusal.EXITING),
        (LowDiskError("almost full"), Refusal.FREE_SPACE),
        (OSError(errno.ENOSPC, "no space"), Refusal.DISK),
        (ConsumerLimitError("too many"), None),
        (None, None),
    ],
)
def test_the_refusal_of_an_error(error: Exception | None, refusal: Refusal | None) -> None:
    assert find_refusal(error) is refusal
