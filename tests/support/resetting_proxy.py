"""ResettingProxy: a network that resets each connection after a random number of bytes.

It runs in threads, for tests of programs. Bytes that were read and not yet passed on are lost with
the connection, as in a network: an answer may be lost though its command was executed.
"""

import contextlib
import random
import socket
import threading
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_READ_BYTES = 1 << 14
_LINGER_NONE = (1).to_bytes(4, "little") + bytes(4)


class ResettingProxy:
    """One port that stands for another; a context."""

    def __init__(self, target_port: int, max_bytes: int, seed: int) -> None:
        """Args: max_bytes: no connection carries more to the target."""
        self.reset_count = 0
        self._target_port = target_port
        self._max_bytes = max_bytes
        self._chance = random.Random(seed)
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            _Pair(self, near, self._target_port, self._chance.randint(1, self._max_bytes)).start()


class _Pair:
    """A connection and the one behind it."""

    def __init__(self, proxy: ResettingProxy, near: socket.socket, port: int, budget: int) -> None:
        self._proxy = proxy
        self._near = near
        self._far = socket.create_connection((HOST, port))
        self._budget = budget
        self._lock = threading.Lock()
        self._is_over = False

    def start(self) -> None:
        """Carry bytes both ways."""
        for source, goal, is_counted in (
            (self._near, self._far, True),
            (self._far, self._near, False),
        ):
            threading.Thread(
                target=self._carry, args=(source, goal), kwargs={"is_counted": is_counted}
            ).start()

    def _carry(self, source: socket.socket, goal: socket.socket, *, is_counted: bool) -> None:
        try:
            while data := source.recv(_READ_BYTES):
                if is_counted:
                    goal.sendall(data[: self._budget])
                    self._budget -= len(data)
                    if self._budget <= 0:
                        self._end(is_reset=True)
                        return
                else:
                    goal.sendall(data)
            goal.shutdown(socket.SHUT_WR)
            if not is_counted:
                self._end(is_reset=False)
        except OSError:
            self._end(is_reset=False)

    def _end(self, *, is_reset: bool) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._proxy.reset_count += is_reset
        for each in (self._near, self._far):
            if is_reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            with contextlib.suppress(OSError):  # Its other end may have closed it.
                each.shutdown(socket.SHUT_RDWR)  # Wakes the thread that reads from it.
            each.close()
