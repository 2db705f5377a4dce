"""The error that ends a connection counts once, as a refusal or as a failure."""

import errno

import pytest

from nsqd.broker.errors import DepthLimitError, DrainingError, LowDiskError
from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.runtime.door_counts import DoorCounts, Failure, Refusal
from nsqd.tcp.end_counts import count_fatal_error
from nsqd.tcp.handlers import failed_error
from nsqd.tcp.stream import TlsRefusedError


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (failed_error("PUB", DepthLimitError("full", 0)), Refusal.QUEUE_FULL),
        (failed_error("MPUB", DrainingError()), Refusal.DRAINING),
        (failed_error("DPUB", LowDiskError("almost full")), Refusal.FREE_SPACE),
        (failed_error("PUB", OSError(errno.EIO, "Input/output error")), Refusal.DISK),
        (FatalClientError(ErrorCode.E_UNAUTHORIZED, "AUTH failed for PUB"), Refusal.AUTH),
        (FatalClientError(ErrorCode.E_AUTH_FIRST, "AUTH required before PUB"), Refusal.AUTH),
        (FatalClientError(ErrorCode.E_BAD_MESSAGE, "PUB message too big 9 > 8"), Refusal.SIZE),
        (FatalClientError(ErrorCode.E_BAD_BODY, "IDENTIFY body too big 9 > 8"), Refusal.SIZE),
    ],
)
def test_a_refusal(error: FatalClientError, refusal: Refusal) -> None:
    counts = DoorCounts()

    count_fatal_error(counts, error)

    assert counts.refusals == {refusal: 1}
    assert not counts.failures


@pytest.mark.parametrize(
    ("code", "cause", "failure"),
    [
        (ErrorCode.E_BAD_PROTOCOL, None, Failure.MAGIC),
        (ErrorCode.E_IDENTIFY_FAILED, TlsRefusedError("timeout"), Failure.TLS),
        (ErrorCode.E_INVALID, None, Failure.PROTOCOL),
        (ErrorCode.E_BAD_TOPIC, None, Failure.PROTOCOL),
    ],
)
def test_a_failure(code: ErrorCode, cause: Exception | None, failure: Failure) -> None:
    counts = DoorCounts()
    error = FatalClientError(code, "text")
    error.__cause__ = cause

    count_fatal_error(counts, error)

    assert counts.failures == {failure: 1}
    assert not counts.refusals
