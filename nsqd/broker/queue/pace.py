"""Pace: whether a disk is quick enough for appends on the event loop.

An append to the page cache takes about 2 us, through a thread 67 us. So appends are made on the
loop, unless the disk has shown that it may stall: then a thread makes them, and the loop serves
other topics meanwhile. A disk is not trusted before it has made one append, nor for a while after
it was slow, a longer while each time.

    WARY -- an append in a thread was quick, and the while is over --> QUICK
         <-- an append took longer than SLOW_S --------------------
"""

from collections.abc import Callable

# An append on the loop that took so long was not one to the page cache.
SLOW_S = 0.02
# In a thread it is measured with the time until the loop gives the interpreter back, which takes
# 5 ms and more; and it may be large.
SLOW_JOB_S = 0.05
MIN_BYTES_PER_S = 100e6
# How long a disk is watched after it was slow.
MIN_WARY_S = 1.0
MAX_WARY_S = 60.0


class Pace:
    """How the appends to one disk queue have gone of late."""

    __slots__ = ("_clock", "_is_trusted", "_wary_s", "_wary_until", "is_quick")

    def __init__(self, clock: Callable[[], float], *, is_trusted: bool = False) -> None:
        """Args:
        clock: the time in seconds.
        is_trusted: take the disk for quick, however long it takes.
        """
        # Whether appends may be made on the loop.
        self.is_quick = is_trusted
        self._is_trusted = is_trusted
        self._clock = clock
        self._wary_until = 0.0
        self._wary_s = MIN_WARY_S

    @property
    def is_slow(self) -> bool:
        """Whether an append took long a while ago."""
        return self._clock() < self._wary_until

    def note_append(self, seconds: float) -> None:
        """Note how long an append on the loop took."""
        if seconds > SLOW_S and not self._is_trusted:
            self._note_slow()

    def note_job(self, seconds: float, size_bytes: int) -> None:
        """Note how long an append in a thread took."""
        if self._is_trusted:
            return
        if seconds > SLOW_JOB_S + size_bytes / MIN_BYTES_PER_S:
            self._note_slow()
        elif self._clock() >= self._wary_until:
            self.is_quick = True

    def doubt(self) -> None:
        """Have the next append prove that the disk is quick: it makes a file."""
        self.is_quick = self._is_trusted

    def _note_slow(self) -> None:
        now = self._clock()
        if now - self._wary_until > MAX_WARY_S:
            self._wary_s = MIN_WARY_S
        elif self.is_quick:
            self._wary_s = min(2 * self._wary_s, MAX_WARY_S)
        self.is_quick = False
        self._wary_until = now + self._wary_s
