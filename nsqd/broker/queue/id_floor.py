"""IdFloor: a note on disk of how far message ids have gone, so that none is given out twice.

Ids count the time, and the clock may be set back while nsqd is down, or before it was killed. A new
life therefore starts behind the newest file of the data path (`Listing.newest_change_ns`). That
alone would not do: ids of messages in memory leave no file, and after a step back they are ahead of
the clock that dates the files. So one file, `nsqd.clock`, is dated by hand: a little ahead of the
ids while nsqd runs, exactly at the end. Nothing reads its content.
"""

import logging
import os
from pathlib import Path

from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

FILE_NAME = "nsqd.clock"
INTERVAL_S = 5.0
# Ids go on until the next note has been made.
AHEAD_NS = int(2 * INTERVAL_S * 1e9)


class IdFloor:
    """Keeps the note while ids are given out; an idle node writes nothing."""

    def __init__(self, data_path: Path, ids: MessageIdFactory, scheduler: Scheduler) -> None:
        self._path = data_path / FILE_NAME
        self._ids = ids
        self._scheduler = scheduler
        self._noted_ns = ids.latest_ns
        self._has_failed = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to look, now and then, whether ids have been given out."""
        self._timer = self._scheduler.call_at(self._scheduler.time() + INTERVAL_S, self._look)

    def stop(self) -> None:
        """Note the last id that was given out.

        Raises:
            OSError: it is not noted.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._path.exists() or self._ids.latest_ns > self._scheduler.wall_time_ns():
                date(self._path, self._ids.latest_ns)

    def _look(self) -> None:
        latest_ns = self._ids.latest_ns
        if latest_ns == self._noted_ns and not self._has_failed:
            self.start()
            return
        self._noted_ns = latest_ns
        self._scheduler.run_in_thread(lambda: date(self._path, latest_ns + AHEAD_NS), self._dated)

    def _dated(self, error: OSError | None) -> None:
        if error is not None and not self._has_failed:
            logger.warning("NSQ: failed to note the last message id - %s", error)
        self._has_failed = error is not None
        if self._timer is not None:
            self.start()


def date(path: Path, time_ns: int) -> None:
    """Give a file, made if need be, a date that survives a power cut; blocks.

    Raises:
        OSError: it has not got it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        os.utime(descriptor, ns=(time_ns, time_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
