"""ChecksumFailures: how many records were not delivered because of their checksums."""


class ChecksumFailures:
    """A count that the queues of a process share."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0
