"""Counts that tasks tell the driver while they run, in lines of a name and a count.

Spark tells the driver only of attempts that ended well, and of a source nothing at all. So each
attempt tells the driver itself: a sink its id, and how many messages nsqd has acknowledged by then;
a stream the places that it has skipped. The last count of a name is the one that counts.
"""

import contextlib
import json
import logging
import secrets
import socket
import threading
from collections.abc import Mapping

_TIMEOUT_S = 10.0
_MAX_LINE_BYTES = 4096

_logger = logging.getLogger(__name__)


class Tally:
    """The driver's side: listens until it is closed."""

    def __init__(self, host: str) -> None:
        """Listen on an address that executors can reach: the driver's own.

        Raises:
            OSError: that is not possible.
        """
        self._secret = secrets.token_hex(16)
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._socket = socket.create_server((host, 0))
        port = self._socket.getsockname()[1]
        self.address = f"{host}/{port}/{self._secret}"
        threading.Thread(target=self._accept, name="tally", daemon=True).start()

    def counts(self) -> Mapping[str, int]:
        """Return the last count of each name."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            while line := lines.readline(_MAX_LINE_BYTES):
                try:
                    secret, name, count = json.loads(line)
                except (ValueError, TypeError):
                    return
                if not secrets.compare_digest(str(secret), self._secret):
                    return
                with self._lock:
                    self._counts[str(name)] = int(count)


class TallyClient:
    """A task's side; a driver that cannot be reached is logged once and no error."""

    def __init__(self, address: str) -> None:
        host, port, self._secret = address.rsplit("/", 2)
        self._told: tuple[str, int] | None = None
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        except OSError as error:
            self._give_up(error)

    def tell(self, name: str, count: int) -> None:
        """Tell how many there are of a name by now."""
        if self._socket is None or (name, count) == self._told:
            return
        self._told = name, count
        line = json.dumps([self._secret, name, count]) + "\n"
        try:
            self._socket.sendall(line.encode())
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the connection when the driver has read everything: a task ends after that."""
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.recv(1)
        self._socket.close()
        self._socket = None

    def _give_up(self, error: OSError) -> None:
        _logger.warning("counts of this task are not told to the driver error=%s", error)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
