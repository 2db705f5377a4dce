"""What all workers share: the start signal, the result, the clock of a blocking socket.

The workers themselves are in publishers.py, consumers.py, latency.py and crowd.py. Each runs in
a process of its own (see worker_process.py) and owns its sockets. It connects, calls `start`,
which returns when all the others are ready too, and only then looks at the clock.
"""

import socket
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import wire

Start = Callable[[], None]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one worker did, on the clock all processes share (CLOCK_MONOTONIC)."""

    messages: int
    started_ns: int
    ended_ns: int
    cpu_s: float
    latency_ms: dict[str, float] = field(default_factory=dict)
    delays_ns: "array[int]" = field(default_factory=lambda: array("q"))


def percentiles_ms(latencies_ns: "array[int]") -> dict[str, float]:
    """Nearest-rank percentiles of a sample, in milliseconds."""
    ordered = sorted(latencies_ns)
    if not ordered:
        return {}
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    last = len(ordered) - 1
    return {name: ordered[min(last, int(len(ordered) * q))] / 1e6 for name, q in ranks.items()}


def block_with_timeout(sock: socket.socket, timeout_s: float = wire.SOCKET_TIMEOUT_S) -> None:
    """Make the kernel keep the time: Python's own timeout costs a poll() before each call."""
    sock.setblocking(True)
    limit = struct.pack("ll", int(timeout_s), 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
