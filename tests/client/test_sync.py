"""Case 15: programs without an event loop."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.client import ClosedError, ConnectError, PublishTimeoutError, sync
from tests.support.daemon_process import OURS, DaemonProcess, find_go_program


@pytest.fixture(params=["ours", "go"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DaemonProcess]:
    """nsqd of either kind."""
    go = find_go_program("nsqd")
    if request.param == "go" and go is None:
        pytest.skip("Go's nsqd is not on PATH")
    command = OURS if request.param == "ours" else [str(go)]
    with DaemonProcess(tmp_path / "nsqd", command=command) as nsqd:
        yield nsqd


def depth(daemon: DaemonProcess) -> int:
    stats = daemon.request("GET", "/stats?format=json&topic=topic")
    topics = json.loads(stats)["topics"]
    return int(topics[0]["depth"])


def test_sixteen_threads(daemon: DaemonProcess) -> None:
    with sync.Producer(daemon.tcp_address) as producer:

        def publish(worker: int) -> None:
            for number in range(50):
                producer.publish("topic", b"%d-%d" % (worker, number))

        threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert producer.publish_many("topic", [b"x"] * 10) == 10
        assert producer.stats().published == 810

    assert depth(daemon) == 810
    with pytest.raises(ClosedError):
        producer.publish("topic", b"x")


PROGRAM = """
import os, sys
from nsqd.client import sync
producer = sync.Producer(sys.argv[1])
producer.publish("topic", b"parent")
child = os.fork()
producer.publish("topic", b"child" if child == 0 else b"parent again")
if child:
    os.waitpid(child, 0)
sync.publish(sys.argv[1], "topic", b"alone")
"""


def test_a_fork_publishes_and_the_interpreter_exits(daemon: DaemonProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, daemon.tcp_address],
        timeout=50,
        check=False,
        capture_output=True,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert depth(daemon) == 5


CONSUMER = """
import sys
from nsqd.client import sync

def handle(message):
    sys.stdout.write(f"{message.text()}\\n")  # of two threads: whole lines
    sys.stdout.flush()

sync.consume(handle, "topic", "ch", nsqd=[sys.argv[1]], concurrency=2)
print("end")
"""


def test_consuming_ends_with_a_signal(daemon: DaemonProcess) -> None:
    daemon.publish("topic", b"one", b"two")
    with subprocess.Popen(
        [sys.executable, "-c", CONSUMER, daemon.tcp_address], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen = {process.stdout.readline() for _ in range(2)}
        process.terminate()
        rest = process.stdout.read()

    assert seen == {"one\n", "two\n"}
    assert rest == "end\n"
    assert process.returncode == 0
    channel = daemon.find_channel("topic", "ch")
    assert channel is not None
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)


def test_errors_reach_the_caller() -> None:
    producer = sync.Producer("127.0.0.1:1", timeout=0.3)
    with pytest.raises(PublishTimeoutError) as caught:
        producer.publish("topic", b"x")
    producer.close()

    assert caught.value.is_certainly_not_published
    assert isinstance(caught.value.__cause__, ConnectError)
