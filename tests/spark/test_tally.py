"""Counts that tasks tell the driver: the last word of each attempt counts."""

import pickle
import socket
from collections.abc import Iterator

import pytest

from spark_jobs.read.skipped import SkippedPlaces, SkipTeller
from spark_jobs.tally import Tally, TallyClient
from tests.support.waiting import wait_until


@pytest.fixture
def tally() -> Iterator[Tally]:
    made = Tally("127.0.0.1")
    yield made
    made.close()


def test_the_last_word_of_each_attempt(tally: Tally) -> None:
    first, second = TallyClient(tally.address), TallyClient(tally.address)

    for count in (10, 20, 20):
        first.tell("1", count)
    second.tell("2", 5)
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

    client = TallyClient(made.address)
    client.tell("1", 5)
    client.close()


def test_a_client_that_is_closed_was_heard(tally: Tally) -> None:
    """A task ends after that, so the driver knows all counts of tasks that have ended."""
    for number in range(50):
        client = TallyClient(tally.address)
        client.tell(str(number), number)
        client.close()

        assert tally.counts()[str(number)] == number


def test_each_place_that_is_skipped_counts_once() -> None:
    places = SkippedPlaces("127.0.0.1")
    address = places.address()
    assert pickle.loads(pickle.dumps(places)).count() == 0

    for _ in range(2):  # Spark runs the task again.
        teller = SkipTeller(address)
        teller.tell("/data/t.diskqueue.000001.dat", 700, 17)
        teller.tell("/data/t.diskqueue.000002.dat", 700, 17)
        teller.close()

    assert places.count() == 2
    places.close()


def test_without_a_host_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for host in (None, "192.0.2.1"):
        places = SkippedPlaces(host)
        teller = SkipTeller(places.address())
        teller.tell("/data/t.diskqueue.000001.dat", 700, 17)
        teller.close()
        assert (places.address(), places.count()) == ("", 0)

    assert caplog.text.count("skipped places are not counted host=192.0.2.1") == 1
