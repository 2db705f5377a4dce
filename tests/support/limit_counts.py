"""Figures of queues with limits, and a disk that refuses."""

import errno

import pytest

from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic

# Without a memory queue, in memory, and both.
SIZES = pytest.mark.parametrize("mem_queue_size", [0, 3, 1000])


def dropped(channel: Channel | Topic) -> dict[str, int]:
    """Return why how many messages were dropped."""
    counts = channel.losses.dropped_counts
    return {reason.value: count for reason, count in counts.items() if count}


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def refuse(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
