"""What becomes of a publish for which a bounded queue has no room."""

from collections.abc import Callable

from nsqd.broker.broker import Broker
from nsqd.broker.errors import DepthLimitError
from nsqd.protocol.commands import Publish
from nsqd.protocol.errors import publish_error


def publish_in_parts(
    publish: Callable[[Publish], object], broker: Broker, command: Publish, error: DepthLimitError
) -> None:
    """Take of a run of PUBs those for which there is room, and refuse the next; an MPUB is one.

    Args:
        publish: runs a part of the command.
        error: why the whole was refused.

    Raises:
        FatalClientError: one was refused.
    """
    if command.ok_count == 1:
        broker.count_refusal(command.topic)
        raise publish_error(command.verb, error) from error
    part_count = error.room_count or 1
    for start in range(0, len(command.bodies), part_count):
        part = command.bodies[start : start + part_count]
        publish(Publish(command.verb, command.topic, part, len(part)))
