"""Pace: a brake, for those who copy or publish at a rate."""

import time


class Pace:
    """A brake that lets so much through in a second, be it messages or bytes."""

    def __init__(self, rate: int | None) -> None:
        """Args: rate: per second; None for no brake."""
        self._rate = rate
        self._free_at = time.monotonic()

    def wait(self, amount: int) -> None:
        """Wait until the amounts before this one have had their time."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + amount / self._rate
