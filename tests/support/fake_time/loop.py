"""FakeTimeLoop: asyncio's own loop, whose clock jumps to the next timer instead of waiting.

Its connections go through memory to the servers that listen on it, so a test needs no socket, and
runs the same way each time.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any

# One way; bytes that are written are read that much later, in order.
LATENCY_S = 0.001

MakeProtocol = Callable[[], asyncio.Protocol]


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: tells the loop's clock to move on by as much as it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to wait for: the test would hang")
        self.now += max(timeout, 0.0)
        return []


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """Fake time, and a network of addresses: `listen`, and the client's `create_connection`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._listeners: dict[tuple[str, int], MakeProtocol] = {}
        # Both ends of every connection that has not ended.
        self.open_ends: set[MemoryTransport] = set()
        # How often each address was called, whether anybody listened or not.
        self.call_counts: dict[tuple[str, int], int] = {}

    def time(self) -> float:
        return self._jumping.now

    @property
    def timer_count(self) -> int:
        """How many timers will still fire."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined] # asyncio's own
        return sum(not handle.cancelled() for handle in scheduled)

    def listen(self, host: str, port: int, make_protocol: MakeProtocol) -> None:
        """Serve connections to an address."""
        assert (host, port) not in self._listeners
        self._listeners[host, port] = make_protocol

    def stop_listening(self, host: str, port: int) -> None:
        """Refuse connections to an address."""
        del self._listeners[host, port]

    async def create_connection(  # type: ignore[override] # as much of it as clients use
        self, protocol_factory: MakeProtocol, host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        assert not any(options.values()), options
        self.call_counts[host, port] = self.call_counts.get((host, port), 0) + 1
        await asyncio.sleep(2 * LATENCY_S)
        make_server = self._listeners.get((host, port))
        if make_server is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        near = MemoryTransport(self, protocol_factory())
        far = MemoryTransport(self, make_server())
        near.peer, far.peer = far, near
        self.open_ends |= {near, far}
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near, near.protocol


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: FakeTimeLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.peer: MemoryTransport | None = None
        self._loop = loop
        self._is_closing = False
        self._has_written_eof = False
        # What is under way to the other end, in order: equal times of a heap have none.
        self._under_way: deque[Callable[[], None]] = deque()

    def write(self, data: Any) -> None:
        if not self._is_closing:
            assert not self._has_written_eof
            self._send(lambda: self._other.take(bytes(data)))

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._has_written_eof = True
        self._send(self._other.take_eof)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """End it in order: the other end reads what was written before."""
        if not self._is_closing:
            self._is_closing = True
            self._send(lambda: self._other.end(None))
            self._loop.call_soon(self.end, None)

    def abort(self) -> None:
        """Reset it: bytes under way are lost."""
        if not self._is_closing:
            self._is_closing = True
            self._other.reset()
            self._loop.call_soon(self.end, None)

    def _send(self, arrive: Callable[[], None]) -> None:
        self._under_way.append(arrive)
        self._loop.call_later(LATENCY_S, lambda: self._under_way.popleft()())

    @property
    def _other(self) -> "MemoryTransport":
        assert self.peer is not None
        return self.peer

    # Called by the other end.

    def reset(self) -> None:
        """Read nothing any more, and tell the protocol why."""
        self._is_closing = True
        error = ConnectionResetError("Connection reset by peer")
        self._loop.call_later(LATENCY_S, self.end, error)

    def take(self, data: bytes) -> None:
        """Hand bytes to the protocol."""
        if not self._is_closing:
            self.protocol.data_received(data)

    def take_eof(self) -> None:
        """Tell the protocol that nothing comes any more."""
        if not self._is_closing and not self.protocol.eof_received():
            self.close()

    def end(self, error: Exception | None) -> None:
        """Tell the protocol that the connection has ended, once."""
        self._is_closing = True
        if self in self._loop.open_ends:
            self._loop.open_ends.remove(self)
            self.protocol.connection_lost(error)
