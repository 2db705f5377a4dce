"""Counting the errors that end connections: as a refusal, or as a failure of the connection."""

from nsqd.protocol.errors import ErrorCode, FatalClientError
from nsqd.runtime.door_counts import DoorCounts, Failure, Refusal
from nsqd.runtime.refusals import find_refusal
from nsqd.tcp.stream import TlsRefusedError

_AUTH_CODES = frozenset(
    {
        ErrorCode.E_AUTH_FAILED,
        ErrorCode.E_AUTH_ERROR,
        ErrorCode.E_AUTH_FIRST,
        ErrorCode.E_UNAUTHORIZED,
    }
)


def count_fatal_error(counts: DoorCounts, error: FatalClientError) -> None:
    """Count the error that a client is answered with before its connection is closed.

    Args:
        error: its cause, if it has one, is the error of the broker or of TLS.
    """
    refusal = find_refusal(error.__cause__)
    if error.code in _AUTH_CODES:
        refusal = Refusal.AUTH
    elif error.is_about_size:
        refusal = Refusal.SIZE
    if refusal is not None:
        counts.refusals[refusal] += 1
    elif isinstance(error.__cause__, TlsRefusedError):
        counts.failures[Failure.TLS] += 1
    elif error.code is ErrorCode.E_BAD_PROTOCOL:
        counts.failures[Failure.MAGIC] += 1
    else:
        counts.failures[Failure.PROTOCOL] += 1
