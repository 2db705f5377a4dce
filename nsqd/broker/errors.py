"""Errors of the broker; the doors turn each into the code and text of their protocol.

A new error of a publish is answered in tcp.handlers, api.publish and api.move, kept for later in
limits.dead_letter, and counted in runtime.refusals.
"""

import errno


class ClosedError(Exception):
    """The topic or channel is being closed or deleted, and accepts no messages any more."""

    def __init__(self, reason: str = "exiting") -> None:
        super().__init__(reason)


class DrainingError(ClosedError):
    """The node is being emptied and accepts no new messages."""

    def __init__(self) -> None:
        super().__init__("draining")


class DepthLimitError(Exception):
    """A publish would take a queue beyond its bound; the text names the queue and the bound."""

    def __init__(self, reason: str, room_count: int) -> None:
        """Args: room_count: for how many of its messages, from the first on, there was room."""
        super().__init__(reason)
        self.room_count = room_count


class ConsumerLimitError(Exception):
    """The channel already has as many consumers as it may have."""


class NotInFlightError(Exception):
    """The message is not in flight in this channel, or is at another consumer."""


class NewestUnknownError(Exception):
    """Which messages on disk are the newest can't be told without reading all of them."""


class SlowDiskError(OSError):
    """An append to disk could take long: a thread has to make it."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "the disk is slow")


class LowDiskError(OSError):
    """The disk is almost full, and the room left is kept for the messages that are here."""

    def __init__(self, shortage: str) -> None:
        super().__init__(errno.ENOSPC, shortage)


def cause_of(error: Exception) -> str:
    """Return an error for clients: the system's words as Go spells them, without paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error)
