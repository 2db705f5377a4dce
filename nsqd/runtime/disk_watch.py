"""DiskWatch: measures the room on the data path, and finds out when a failing disk works again.

Below `--min-free-disk` publishes are refused, so that there is room for the messages that were
accepted before: the memory queues at shutdown, requeues, positions. With that option the room is
also measured after as many appends as may have used it up, on the loop: a look takes a microsecond,
and where it hangs an append would have hung as well.

After a refused write DiskWatch writes a probe every second until one succeeds: publishers may have
gone elsewhere, so that no publish would show that the disk has recovered.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from nsqd.broker.errors import LowDiskError
from nsqd.broker.health import Health
from nsqd.broker.scheduler import Scheduler, Timer

logger = logging.getLogger(__name__)

PROBE_FILE_NAME = "nsqd.probe.tmp"
# As much as a large message takes; less would fit into the last corner of a full disk.
PROBE_BYTES = 128 * 1024

IDLE_INTERVAL_S = 10.0  # only for the metric
INTERVAL_S = 1.0
# No append is expected to be larger; --max-body-size is 5 MiB by default.
MAX_APPEND_BYTES = 8 * 2**20
# Other programs write to the disk too.
MAX_UNSEEN_APPENDS = 1000
# Publishes are taken again when this part of the limit is free beyond it.
RESUME_SHARE = 10

SOURCE = "data path"

MakeError = Callable[[], Exception]


class DiskWatch:
    """Watch one data path; `start` comes before the first publish."""

    def __init__(
        self,
        data_path: Path,
        health: Health,
        scheduler: Scheduler,
        *,
        min_free_bytes: int,
        refuse: Callable[[MakeError | None], object],
        free_room: Callable[[], object],
    ) -> None:
        """Args:
        min_free_bytes: publishes are refused when less is free; 0 never refuses any.
        refuse: has publishes refused with the error that is made, or with None taken again.
        free_room: has the queues remove the files that they do not need.
        """
        self._data_path = data_path
        self._health = health
        self._scheduler = scheduler
        self._min_free_bytes = min_free_bytes
        self._refuse = refuse
        self._free_room = free_room
        self._free_bytes = 0
        self._shortage: str | None = None
        self._unseen_left = 0
        self._is_looking = False
        self._is_stopped = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look for the first time, here and now, and go on looking.

        Raises:
            OSError: the data path can't be looked at.
        """
        self._measure()
        self._judge()
        self._health.on_failure = self._hurry
        if self._min_free_bytes:
            self._health.on_append = self._count_append
        self._arm()

    def stop(self) -> None:
        """Look no more."""
        self._is_stopped = True
        self._health.on_failure = self._health.on_append = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hurry(self) -> None:
        """Look soon, after a failure: do not wait for the end of an idle interval."""
        if not self._is_looking and not self._is_stopped:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        when = self._scheduler.time() + self._interval_s()
        self._timer = self._scheduler.call_at(when, self._look)

    def _interval_s(self) -> float:
        if not self._health.is_healthy:
            return INTERVAL_S
        return INTERVAL_S if self._min_free_bytes else IDLE_INTERVAL_S

    def _count_append(self) -> None:
        self._unseen_left -= 1
        if self._unseen_left <= 0 and not self._is_looking:
            # The look in the thread reports the error if the room cannot be measured.
            with contextlib.suppress(OSError):
                self._measure()
            self._judge()

    def _look(self) -> None:
        self._timer = None
        self._is_looking = True
        if self._health.has_refused_write:
            self._scheduler.run_in_thread(self._measure_and_probe, self._probed)
        else:
            self._scheduler.run_in_thread(self._measure, self._looked)

    def _measure(self) -> None:
        status = os.statvfs(self._data_path)
        self._free_bytes = status.f_bavail * status.f_frsize

    def _measure_and_probe(self) -> None:
        self._measure()
        probe(self._data_path)

    def _looked(self, error: OSError | None) -> None:
        self._is_looking = False
        if self._is_stopped:
            return
        self._health.repeated(SOURCE, error)
        if error is None:
            self._judge()
        if self._shortage is not None or self._health.has_refused_write:
            self._free_room()
        self._arm()

    def _probed(self, error: OSError | None) -> None:
        if error is None and not self._is_stopped:
            logger.info("NSQ: the disk takes writes again")
            self._health.wrote(PROBE_FILE_NAME, None)
        # A probe that failed is no news; the measured room counts all the same.
        self._looked(None)

    def _judge(self) -> None:
        """Refuse publishes or take them again, after a look."""
        self._health.free_bytes = free_bytes = self._free_bytes
        room_bytes = max(free_bytes - self._min_free_bytes, 0)
        self._unseen_left = min(room_bytes // MAX_APPEND_BYTES, MAX_UNSEEN_APPENDS)
        was_low = self._shortage is not None
        limit = self._min_free_bytes
        if was_low:
            limit += limit // RESUME_SHARE
        self._shortage = None
        if free_bytes < limit:
            self._shortage = f"disk almost full: {free_bytes} bytes free, {limit} needed"
        is_low = self._shortage is not None
        if is_low or was_low:
            self._health.run_short(self._shortage)
        if is_low and not was_low:
            logger.error(
                "NSQ: disk almost full, refusing publishes free=%d min-free-disk=%d",
                free_bytes,
                self._min_free_bytes,
            )
            self._refuse(self._make_error)
        elif was_low and not is_low:
            logger.info("NSQ: disk has room again, taking publishes free=%d", free_bytes)
            self._refuse(None)

    def _make_error(self) -> LowDiskError:
        return LowDiskError(self._shortage or "disk almost full")


def probe(data_path: Path) -> None:
    """Write a file, make it durable and remove it; blocks.

    Raises:
        OSError: the disk takes no writes.
    """
    path = data_path / PROBE_FILE_NAME
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        try:
            left = PROBE_BYTES
            while left:
                left -= os.write(descriptor, bytes(left))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
