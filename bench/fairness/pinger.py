"""The client that measures: a PUB every millisecond on a topic of its own, waiting for each OK.

The schedule is fixed. While one answer is outstanding, the pings that fall due are not sent; each
counts as if it had been sent in time and answered together with the outstanding one. So a daemon
that holds the pinger for a second has a thousand late pings, not one (coordinated omission).

The pinger runs in a process of its own, with real-time priority where the system allows it: it
measures the daemon, not the scheduler that shares the processor between the load and the pinger.
"""

import contextlib
import gc
import os
import socket
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Final

from bench import wire
from bench.load import LoadResult, Start, block_with_timeout
from bench.wire import LoadError

INTERVAL_NS: Final = 1_000_000
BODY: Final = b"ping" * 25
_PRIORITY: Final = 1
# An answer that takes longer than this ends the measurement with an error.
MOST_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PingPlan:
    """Ping the daemon at `address` until `stop` is set, or for `most_seconds`."""

    address: tuple[str, int]
    topic: str
    most_seconds: float
    stop: Event


def ping(plan: PingPlan, start: Start) -> LoadResult:
    """Ping until told to stop, and return the delay of each ping of the schedule.

    Raises:
        LoadError: the daemon refuses a publish, closes the connection, or does not answer.
    """
    command = wire.pub_command(plan.topic, BODY)
    with _undisturbed(), wire.connect_publisher(plan.address) as sock:
        block_with_timeout(sock, MOST_WAIT_S)
        for _ in range(10):  # the first one makes the topic
            _publish(sock, command)
        start()
        return _ping(plan, sock, command)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Run before other processes, if that is allowed, and without the garbage collector."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.sched_setscheduler(0, policy, parameters)


def _ping(plan: PingPlan, sock: socket.socket, command: bytes) -> LoadResult:
    delays: array[int] = array("q")
    cpu_s = time.process_time()
    begin_ns = due_ns = time.monotonic_ns()
    end_ns = begin_ns + int(plan.most_seconds * 1e9)
    while due_ns < end_ns and not plan.stop.is_set():
        early_ns = due_ns - time.monotonic_ns()
        if early_ns > 0:
            time.sleep(early_ns / 1e9)
        _publish(sock, command)
        now_ns = time.monotonic_ns()
        while due_ns <= now_ns:
            delays.append(now_ns - due_ns)
            due_ns += INTERVAL_NS
    return LoadResult(
        len(delays), begin_ns, time.monotonic_ns(), time.process_time() - cpu_s, delays_ns=delays
    )


def _publish(sock: socket.socket, command: bytes) -> None:
    try:
        sock.sendall(command)
        answer = sock.recv(len(wire.OK_FRAME))
        while answer and len(answer) < len(wire.OK_FRAME):
            answer += sock.recv(len(wire.OK_FRAME) - len(answer))
    except BlockingIOError as error:
        raise LoadError(f"the pinger had no answer for {MOST_WAIT_S:.0f} s") from error
    if answer != wire.OK_FRAME:
        raise LoadError(f"a ping was answered with {wire.describe(answer)}")
