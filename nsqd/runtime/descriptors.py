"""Descriptors: a process that may open no more files still answers HTTP, and says so.

The system gives a new socket the lowest number that is free. So a client's socket with one of the
last numbers means that all others are in use, and the doors refuse it: TCP when `TCP_RESERVE_COUNT`
are left, HTTP when `HTTP_RESERVE_COUNT` are. What is left over is for the files of the queues.

If files take even those, one descriptor is kept open for HTTP and closed when it is needed: the
next accept gets it. uvloop does not tell when accept fails (libuv closes the client's connection),
so that is found out by a look every second, which opens a file and takes 10 us.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

TCP_RESERVE_COUNT = 32
HTTP_RESERVE_COUNT = 8
LOOK_INTERVAL_S = 1.0
LOG_INTERVAL_S = 60.0
# The errors of accept that tell of the system or the process, not of the client.
ACCEPT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Descriptors:
    """The file descriptors of this process: which are the last ones, and whether any are left."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: limit: how many there may be; None for that of the process."""
        if limit is None:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if limit == resource.RLIM_INFINITY:
                limit = 2**31
        self._limit = limit
        self._call_later = loop.call_later
        self._clock = clock
        self._spare: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at: float | None = None
        # How often accept failed, or was about to because no descriptor was left.
        self.error_count = 0

    def start(self) -> None:
        """Keep one descriptor, and begin to look."""
        self._look()

    def stop(self) -> None:
        """Let go of the descriptor."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_spare()

    def is_scarce(self, transport: asyncio.BaseTransport, reserve_count: int) -> bool:
        """Return whether a new connection has to be refused, and log that at most once a minute.

        Args:
            reserve_count: how many descriptors are kept from this door.
        """
        connection = transport.get_extra_info("socket")
        # A process with very few has to do with what it has.
        if connection.fileno() < self._limit - min(reserve_count, self._limit // 4):
            return False
        self._log("refusing connections")
        return True

    def note_accept_error(self, error: OSError) -> bool:
        """Count an error of accept and log it at most once a minute; return False for others."""
        if error.errno not in ACCEPT_ERRNOS:
            return False
        self.error_count += 1
        self._log(f"accept failed - {error.strerror}")
        return True

    def _look(self) -> None:
        """Open a file: keep the first one, give the kept one to HTTP if there are no more."""
        try:
            number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if self.note_accept_error(error):
                self._close_spare()
        else:
            if self._spare is None:
                self._spare = number
            else:
                os.close(number)
        self._timer = self._call_later(LOOK_INTERVAL_S, self._look)

    def _close_spare(self) -> None:
        if self._spare is not None:
            with contextlib.suppress(OSError):
                os.close(self._spare)
            self._spare = None

    def _log(self, text: str) -> None:
        now = self._clock()
        if self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            logger.error(
                "NSQ: out of file descriptors, %s; raise the limit of open files (ulimit -n,"
                " LimitNOFILE) limit=%d",
                *(text, self._limit),
            )
