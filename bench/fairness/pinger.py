"""The client that measures: a PUB every millisecond on a topic of its own, waiting for each OK.

Or, if so planned, for the message as well, which it also consumes.

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
    """Ping the daemon at `address` until `stop` is set, or for `most_seconds`.

    Attributes:
        is_delivered: a ping ends when its message came back on a channel of the topic.
    """

    address: tuple[str, int]
    topic: str
    most_seconds: float
    stop: Event
    is_delivered: bool = False


def ping(plan: PingPlan, start: Start) -> LoadResult:
    """Ping until told to stop, and return the delay of each ping of the schedule.

    Raises:
        LoadError: the daemon refuses a publish, closes the connection, or does not answer.
    """
    with _undisturbed(), contextlib.ExitStack() as stack:
        pinger = _Pinger(plan, stack)
        for _ in range(10):  # the first one makes the topic
            pinger.ping()
        start()
        return _ping(plan, pinger)


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


def _ping(plan: PingPlan, pinger: "_Pinger") -> LoadResult:
    delays: array[int] = array("q")
    cpu_s = time.process_time()
    begin_ns = due_ns = time.monotonic_ns()
    end_ns = begin_ns + int(plan.most_seconds * 1e9)
    while due_ns < end_ns and not plan.stop.is_set():
        early_ns = due_ns - time.monotonic_ns()
        if early_ns > 0:
            time.sleep(early_ns / 1e9)
        pinger.ping()
        now_ns = time.monotonic_ns()
        while due_ns <= now_ns:
            delays.append(now_ns - due_ns)
            due_ns += INTERVAL_NS
    return LoadResult(
        len(delays), begin_ns, time.monotonic_ns(), time.process_time() - cpu_s, delays_ns=delays
    )


class _Pinger:
    """The connections of the pinger: one that publishes, and one that consumes if so planned."""

    def __init__(self, plan: PingPlan, stack: contextlib.ExitStack) -> None:
        self._command = wire.pub_command(plan.topic, BODY)
        self._publisher = stack.enter_context(wire.connect_publisher(plan.address))
        block_with_timeout(self._publisher, MOST_WAIT_S)
        self._consumer: socket.socket | None = None
        if plan.is_delivered:
            # Without a buffer: nsqd in Go would hold a lone message back for a quarter of a second.
            settings: dict[str, object] = {"heartbeat_interval": 60_000, "output_buffer_size": -1}
            consumer = stack.enter_context(wire.connect(plan.address))
            block_with_timeout(consumer, MOST_WAIT_S)
            consumer.sendall(wire.MAGIC + wire.identify_command(settings))
            wire.expect(consumer, wire.OK_FRAME)
            consumer.sendall(f"SUB {plan.topic} quiet\n".encode())
            wire.expect(consumer, wire.OK_FRAME)
            consumer.sendall(b"RDY 1\n")
            self._consumer = consumer

    def ping(self) -> None:
        """Publish, and wait for the answer and perhaps the message.

        Raises:
            LoadError: the daemon refuses, closes the connection, or does not answer.
        """
        self._publisher.sendall(self._command)
        answer = _read(self._publisher, len(wire.OK_FRAME))
        if answer != wire.OK_FRAME:
            raise LoadError(f"a ping was answered with {wire.describe(answer)}")
        if self._consumer is not None:
            message = _read(self._consumer, wire.BODY_OFFSET + len(BODY))
            self._consumer.sendall(b"FIN %s\n" % message[wire.ID_OFFSET : wire.BODY_OFFSET])


def _read(sock: socket.socket, size: int) -> bytes:
    try:
        data = sock.recv(size)
        while data and len(data) < size:
            data += sock.recv(size - len(data))
    except BlockingIOError as error:
        raise LoadError(f"the pinger had no answer for {MOST_WAIT_S:.0f} s") from error
    return data
