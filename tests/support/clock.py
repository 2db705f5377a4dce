"""What tests may say of time: that a thing does not happen too early.

How late it happens is up to the machine as well, so no test asserts that it is quick; the limits on
waiting (`PATIENCE_S`, the timeout of each test) end one that hangs. Work is counted, not timed.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

# uvloop's clock counts milliseconds and stands still within a turn: a timer may seem early by that.
EARLY_S = 0.005


@contextmanager
def not_before(seconds: float) -> Iterator[None]:
    """Make sure that what happens within lasts so long, or longer."""
    started = time.monotonic()
    yield
    lasted_s = time.monotonic() - started
    assert lasted_s >= seconds - EARLY_S, lasted_s


class StillClock:
    """A clock that moves only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
