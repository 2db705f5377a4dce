"""The pinger against a small server that answers when the test lets it."""

import itertools
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench import wire
from bench.fairness.pinger import BODY, INTERVAL_NS, PingPlan, ping
from bench.wire import LoadError

PING = wire.pub_command("quiet", BODY)
HELD_S = 0.2


@contextmanager
def server_that_holds(number: int, answer: bytes = wire.OK_FRAME) -> Iterator[tuple[str, int]]:
    """Answer every command, but one of them late."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(wire.OK_FRAME)
            for count in range(1_000_000):
                if not sock.recv(len(PING)):
                    return
                if count == number:
                    time.sleep(HELD_S)
                sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[:2]
        thread.join()


def plan_for(address: tuple[str, int], seconds: float) -> PingPlan:
    stop = multiprocessing.get_context("fork").Event()
    return PingPlan(address, "quiet", seconds, stop)


def test_pings_that_fell_due_while_one_was_held_count_with_their_own_delay() -> None:
    with server_that_holds(20) as address:
        result = ping(plan_for(address, seconds=0.5), lambda: None)

    held = int(HELD_S * 1e9 / INTERVAL_NS)
    late = sorted(result.delays_ns)[-held:]
    assert late[-1] >= HELD_S * 1e9
    # One ping was held; the schedule had `held` of them in that time, the last due at its end.
    assert all(b - a <= 2 * INTERVAL_NS for a, b in itertools.pairwise(late))
    assert result.messages == len(result.delays_ns) >= 0.5e9 / INTERVAL_NS


def test_an_answer_that_is_not_ok_is_an_error() -> None:
    refusal = wire.type_and_size.pack(6, wire.FRAME_ERROR) + b"NO"
    with (
        server_that_holds(-1, answer=refusal) as address,
        pytest.raises(LoadError, match="NO"),
    ):
        ping(plan_for(address, seconds=0.5), lambda: None)
