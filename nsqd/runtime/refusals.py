"""Refusals of the broker: which of its errors counts as which cause, for both doors."""

from nsqd.broker.errors import ClosedError, DepthLimitError, DrainingError, LowDiskError
from nsqd.runtime.door_counts import Refusal


def find_refusal(error: BaseException | None) -> Refusal | None:
    """Return why the broker refused messages or a subscription, None for any other error."""
    match error:
        case DepthLimitError():
            return Refusal.QUEUE_FULL
        case DrainingError():
            return Refusal.DRAINING
        case ClosedError():
            return Refusal.EXITING
        case LowDiskError():
            return Refusal.FREE_SPACE
        case OSError():
            return Refusal.DISK
        case _:
            return None
