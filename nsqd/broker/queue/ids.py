"""Message ids: NSQ's 64-bit layout as 16 hex digits, handed out in blocks.

    | 42 bits: time tick (2**20 ns) since the epoch below | 10 bits: node id | 12 bits: sequence |

The first 13 digits change once per tick, the last three are the sequence, so a block of ids is a
prefix and a range: publishing 200 messages costs one reservation, not 200 ids.

Ids count the time, and the clock may be set back while nsqd is down, or before it was killed. No id
may be given out twice all the same. A new run therefore starts behind the newest file of the data
path, and one file, `nsqd.clock`, is dated by hand: a little ahead of the ids while nsqd runs,
exactly at the end. Without it ids of messages in memory would leave no file, and after a step back
ids are ahead of the clock that dates the files. Its content is never read.
"""

import logging
import os
from pathlib import Path

from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

# nsqd counts ticks of 1.048576 ms from this tick on.
EPOCH_TICK = 1288834974288
TICK_SHIFT = 20
SEQUENCE_COUNT = 4096

FLOOR_FILE_NAME = "nsqd.clock"
FLOOR_INTERVAL_S = 5.0
# Ids go on until the next date has been set.
FLOOR_AHEAD_NS = int(2 * FLOOR_INTERVAL_S * 1e9)

SUFFIXES = tuple(b"%03x" % sequence for sequence in range(SEQUENCE_COUNT))


class MessageIdFactory:
    """Hands out blocks of ids that never repeat and always grow.

    One factory serves all topics, so ids are unique on the node (the Go daemon's are per topic).
    When the clock stands still or steps back, or a tick is used up, the next tick is borrowed:
    publishing never waits for the clock.
    """

    __slots__ = ("_node_id", "_prefix", "_sequence", "_tick")

    def __init__(self, node_id: int, *, floor_ns: int = 0) -> None:
        """Args: floor_ns: the wall-clock time before which an earlier run may have made ids."""
        self._node_id = node_id
        # A clock before the epoch (1970, on a machine that has lost it) would give negative ticks.
        self._tick = max((floor_ns >> TICK_SHIFT) - EPOCH_TICK, 0)
        self._sequence = SEQUENCE_COUNT
        self._prefix = b""

    @property
    def latest_ns(self) -> int:
        """The wall-clock time that no id up to now lies behind."""
        return (self._tick + 1 + EPOCH_TICK) << TICK_SHIFT

    def reserve(self, count: int, now_ns: int) -> tuple[bytes, int]:
        """Reserve up to 4096 consecutive ids: return their common prefix and first sequence."""
        tick = (now_ns >> TICK_SHIFT) - EPOCH_TICK
        if tick <= self._tick:
            first = self._sequence
            if first + count <= SEQUENCE_COUNT:
                self._sequence = first + count
                return self._prefix, first
            tick = self._tick + 1
        self._tick = tick
        self._sequence = count
        self._prefix = b"%013x" % (tick << 10 | self._node_id)
        return self._prefix, 0


class IdFloor:
    """Dates `nsqd.clock` while ids are given out; an idle node writes nothing."""

    def __init__(self, data_path: Path, ids: MessageIdFactory, scheduler: Scheduler) -> None:
        self._path = data_path / FLOOR_FILE_NAME
        self._ids = ids
        self._scheduler = scheduler
        self._dated_ns = ids.latest_ns
        self._has_failed = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look every few seconds whether ids have been given out."""
        self._timer = self._scheduler.call_at(self._scheduler.time() + FLOOR_INTERVAL_S, self._look)

    def stop(self) -> None:
        """Date the file by the last id that was given out.

        Raises:
            OSError: the file does not have the date.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._path.exists() or self._ids.latest_ns > self._scheduler.wall_time_ns():
                date(self._path, self._ids.latest_ns)

    def _look(self) -> None:
        latest_ns = self._ids.latest_ns
        if latest_ns == self._dated_ns and not self._has_failed:
            self.start()
            return
        self._dated_ns = latest_ns
        self._scheduler.run_in_thread(
            lambda: date(self._path, latest_ns + FLOOR_AHEAD_NS), self._dated
        )

    def _dated(self, error: OSError | None) -> None:
        if error is not None and not self._has_failed:
            logger.warning("NSQ: failed to note the last message id - %s", error)
        self._has_failed = error is not None
        if self._timer is not None:
            self.start()


def date(path: Path, time_ns: int) -> None:
    """Give a file, made if need be, a date that survives a power cut; block until it is durable.

    Raises:
        OSError: the file does not have the date.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        os.utime(descriptor, ns=(time_ns, time_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
