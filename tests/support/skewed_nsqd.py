"""nsqd with a wall clock that a test can set: `python -m tests.support.skewed_nsqd FILE FLAG...`.

The file holds how many seconds its clock is ahead of the true one. Only the wall clock is touched:
the clock of timers is another, and nobody can set that.
"""

import sys
import time
from pathlib import Path

from nsqd.__main__ import main


def skew(path: Path) -> None:
    """Have `time.time` and `time.time_ns` add what the file says from now on."""
    true_time_ns = time.time_ns

    def time_ns() -> int:
        return true_time_ns() + int(path.read_text()) * 10**9

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if __name__ == "__main__":
    skew(Path(sys.argv.pop(1)))
    sys.exit(main())
