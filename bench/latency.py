"""Publish-to-receive latency: a paced publisher and a consumer in two processes, one clock.

The publisher writes CLOCK_MONOTONIC into the first eight bytes of each body at the moment it
sends it and never waits for the daemon, so a slow daemon cannot slow the measurement down.
"""

import select
import socket
import struct
import time
from array import array
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.load import LoadResult, Start, block_with_timeout, percentiles_ms
from bench.wire import LoadError

CHANNEL_RDY: Final = 200
STAMP: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class PacedPlan:
    """`messages` at `rate_per_s`; the first `warm_up` of them are not measured."""

    address: tuple[str, int]
    topic: str
    channel: str
    body_bytes: int
    rate_per_s: int
    messages: int
    warm_up: int
    timeout_s: float


def publish_paced(plan: PacedPlan, start: Start) -> LoadResult:
    """One PUB per tick of the rate; a late tick is made up for at once.

    Raises:
        LoadError: the daemon refuses a publish.
    """
    with wire.connect_publisher(plan.address) as sock:
        start()
        return _publish_paced(plan, sock)


def _publish_paced(plan: PacedPlan, sock: socket.socket) -> LoadResult:
    command = bytearray(wire.pub_command(plan.topic, bytes(plan.body_bytes)))
    stamp_offset = len(command) - plan.body_bytes
    cpu_s, started_ns = time.process_time(), time.monotonic_ns()
    begin = time.monotonic()
    answers = bytearray()
    for number in range(plan.messages):
        delay_s = begin + number / plan.rate_per_s - time.monotonic()
        if delay_s > 0:
            time.sleep(delay_s)
        STAMP.pack_into(command, stamp_offset, time.monotonic_ns())
        sock.sendall(command)
        while select.select([sock], [], [], 0)[0]:
            answers += _received(sock.recv(4096))
    expected = wire.OK_FRAME * plan.messages
    while len(answers) < len(expected):
        answers += _received(sock.recv(4096))
    if answers != expected:
        raise LoadError("a publish was not answered with OK")
    return LoadResult(plan.messages, started_ns, time.monotonic_ns(), time.process_time() - cpu_s)


def consume_stamped(plan: PacedPlan, start: Start) -> LoadResult:
    """Receive and finish every message at once, and note how old each was.

    Raises:
        LoadError: an error frame, a closed connection, or messages missing after the timeout.
    """
    with wire.connect_consumer(plan.address, plan.topic, plan.channel) as sock:
        block_with_timeout(sock)
        sock.sendall(b"RDY %d\n" % CHANNEL_RDY)
        start()
        return _consume_stamped(plan, sock)


def _consume_stamped(plan: PacedPlan, sock: socket.socket) -> LoadResult:
    latencies: array[int] = array("q")
    cpu_s, started_ns = time.process_time(), time.monotonic_ns()
    deadline_ns = started_ns + int(plan.timeout_s * 1e9)
    buffer = b""
    while len(latencies) < plan.messages:
        try:
            buffer += _received(sock.recv(1 << 16))
        except BlockingIOError as error:
            raise LoadError(f"no message for {wire.SOCKET_TIMEOUT_S:.0f} s") from error
        now_ns = time.monotonic_ns()
        buffer, answers = _take_frames(buffer, now_ns, latencies)
        sock.sendall(answers)
        if now_ns > deadline_ns:
            raise LoadError(f"only {len(latencies)} of {plan.messages} messages came in time")
    ended_ns, cpu_s = time.monotonic_ns(), time.process_time() - cpu_s
    quantiles = percentiles_ms(latencies[plan.warm_up :])
    return LoadResult(plan.messages, started_ns, ended_ns, cpu_s, quantiles)


def _take_frames(buffer: bytes, now_ns: int, latencies: "array[int]") -> tuple[bytes, bytes]:
    """Note the age of each complete message; return the rest of the buffer, and the answers."""
    answers, position = [], 0
    while len(buffer) - position >= wire.FRAME_HEADER_BYTES:
        size, kind = wire.type_and_size.unpack_from(buffer, position)
        end = position + 4 + size
        if end > len(buffer):
            break
        if kind == wire.FRAME_ERROR:
            raise LoadError(f"a consumer received {wire.describe(buffer[position:end])}")
        if kind == wire.FRAME_MESSAGE:
            id_start, body_start = position + wire.ID_OFFSET, position + wire.BODY_OFFSET
            latencies.append(now_ns - STAMP.unpack_from(buffer, body_start)[0])
            answers.append(b"FIN %s\n" % buffer[id_start:body_start])
        elif buffer[position:end] == wire.HEARTBEAT_FRAME:
            answers.append(b"NOP\n")
        position = end
    return buffer[position:], b"".join(answers)


def _received(data: bytes) -> bytes:
    if not data:
        raise LoadError("the daemon closed the connection")
    return data
