"""Counts that tasks tell the driver: the last word of each attempt counts."""

import socket
from collections.abc import Iterator

import pytest

from spark_jobs.write.tally import Tally, TallyClient
from tests.support.waiting import wait_until


@pytest.fixture
def tally() -> Iterator[Tally]:
    made = Tally("127.0.0.1")
    yield made
    made.close()


def test_the_last_word_of_each_attempt(tally: Tally) -> None:
    first, second = TallyClient(tally.address, "1"), TallyClient(tally.address, "2")

    for count in (10, 20, 20):
        first.tell(count)
    second.tell(5)
    first.close()
    second.close()

    wait_until(lambda: tally.counts() == {"1": 20, "2": 5})


@pytest.mark.parametrize("line", [b"garbage\n", b'["wrong", "1", 9]\n', b"[1]\n", b"\xff" * 100])
def test_strangers_are_not_counted(line: bytes, tally: Tally) -> None:
    host, port, _ = tally.address.split("/")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(line)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""

    assert tally.counts() == {}


def test_a_driver_that_is_not_there_is_no_error() -> None:
    made = Tally("127.0.0.1")
    made.close()

    client = TallyClient(made.address, "1")
    client.tell(5)
    client.close()
