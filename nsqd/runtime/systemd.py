"""systemd: tell the service manager that the daemon is ready, alive, and stopping (sd_notify).

The protocol is a datagram of lines to the unix socket that NOTIFY_SOCKET names. Without it, as
under any other manager, nothing is sent. With WatchdogSec= in the unit the loop itself sends the
signs of life: a loop that hangs sends none, and systemd starts the daemon again.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)

# systemd expects a sign of life in each WATCHDOG_USEC, and advises to send two.
WATCHDOG_SHARE = 2


class ServiceManager:
    """The service manager that has started this process; none if it left no address."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, environment: Mapping[str, str] = os.environ
    ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte at the start of an abstract address.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._call_later = loop.call_later
        self._interval_s = _find_interval(environment) if address else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Say that the daemon serves, and go on saying that it lives.

        Args:
            status: for `systemctl status`, one line.
        """
        self._send(f"READY=1\nSTATUS={status}")
        if self._interval_s:
            self._beat()

    def stopping(self, status: str) -> None:
        """Say that the daemon stops; from here on TimeoutStopSec= counts, and not the watchdog.

        Args:
            status: as for `ready`.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send(f"STOPPING=1\nWATCHDOG_USEC=0\nSTATUS={status}")

    def _beat(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = self._call_later(self._interval_s, self._beat)

    def _send(self, text: str) -> None:
        """Send a datagram; it must not stop the daemon that no one listens."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            logger.warning("NSQ: failed to notify the service manager - %s", error)


def _find_interval(environment: Mapping[str, str]) -> float:
    """Return the seconds between two signs of life, 0 for none.

    WATCHDOG_PID names the process that is watched: not this one if a script has started it.
    """
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 / WATCHDOG_SHARE if text.isascii() and text.isdigit() else 0.0
