"""Where messages can be on nodes with default flags: every one is a row, once, in any of them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_jobs import snapshot
from spark_jobs.__main__ import main
from spark_jobs.read.files.scan import SegmentLostError
from spark_jobs.read.fleet.client import NodeError
from tests.spark.in_process import read_corruptions, read_table
from tests.spark.test_fleet import Consumer, create, publish, read
from tests.spark.test_fleet_hostile import Frame, Lookupd
from tests.support.daemon_process import DaemonProcess, find_go_program

IN_FLIGHT_FLAGS = ("--msg-timeout=14m", "--max-heartbeat-interval=1h")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    """With default flags, but for consumers that do not answer for the time of a test."""
    with DaemonProcess(tmp_path / "nsqd", *IN_FLIGHT_FLAGS) as daemon:
        daemon.keeps_ports = True
        yield daemon


def places(node: DaemonProcess) -> dict[tuple[str, str | None, str], int]:
    found = read(nsqd=node.http_address).to_pylist()
    assert len({(row["topic"], row["channel"], row["id"]) for row in found}) == len(found)
    return dict(Counter((row["topic"], row["channel"], row["state"]) for row in found))


def test_messages_that_nobody_can_have_yet(node: DaemonProcess) -> None:
    """Paused channels and topics, deferred messages with and without a channel."""
    create(node, "paused", "c")
    node.request("POST", "/channel/pause?topic=paused&channel=c")
    publish(node, "paused", 0, 50)
    create(node, "stopped", "c")
    node.request("POST", "/topic/pause?topic=stopped")
    publish(node, "stopped", 0, 40)
    create(node, "later", "c")
    node.request("POST", "/topic/create?topic=alone")
    for topic in ("later", "alone"):
        for number in range(30):
            node.request("POST", f"/pub?topic={topic}&defer=600000", b"%d" % number)
    expected = {
        ("paused", "c", "ready"): 50,
        ("stopped", None, "ready"): 40,
        ("later", "c", "deferred"): 30,
        ("alone", None, "deferred"): 30,
    }

    assert places(node) == expected
    node.stop()
    node.start()
    assert places(node) == expected


def test_topics_that_are_never_on_disk(node: DaemonProcess) -> None:
    consumer = Consumer(node, "now#ephemeral", "c#ephemeral", 0)
    node.wait_for_channel("now#ephemeral", "c#ephemeral", client_count=1)
    publish(node, "now%23ephemeral", 0, 40)

    assert places(node) == {("now#ephemeral", "c#ephemeral", "ready"): 40}
    consumer.close()


def test_dead_letters_are_in_their_own_topic(tmp_path: Path) -> None:
    flags = (*IN_FLIGHT_FLAGS, "--max-attempts=1", "--dead-letter-topic-suffix=.dead")
    with DaemonProcess(tmp_path, *flags) as node:
        create(node, "t", "c")
        publish(node, "t", 0, 30)
        consumer = Consumer(node, "t", "c", 12)
        node.wait_for_channel("t", "c", in_flight_count=12)
        consumer.requeue(10)
        node.wait_for_channel("t", "c", in_flight_count=2, depth=18)

        assert places(node) == {
            ("t", "c", "ready"): 18,
            ("t", "c", "in_flight"): 2,
            ("t.dead", None, "ready"): 10,
        }
        consumer.close()


def test_messages_of_a_megabyte_and_of_a_byte(tmp_path: Path) -> None:
    sizes = [1_000_000] * 20 + [1] * 5 + [4_999_999] * 2 + [1_048_577]
    with DaemonProcess(tmp_path, "--max-msg-size=5000000") as node:
        create(node, "t", "c")
        for number, size in enumerate(sizes):
            node.request("POST", "/pub?topic=t", b"%c" % (65 + number % 26) * size)
        node.request("POST", "/pub?topic=t&defer=600000", b"d" * 4_000_000)

        bodies = read(nsqd=node.http_address)["body"].to_pylist()

    assert sorted(map(len, bodies)) == sorted([*sizes, 4_000_000])
    assert all(set(body) == {body[0]} for body in bodies)


def test_what_happens_to_messages_in_memory_while_they_are_read(node: DaemonProcess) -> None:
    """A topic is deleted and made anew, a channel emptied: a read has what there was."""
    create(node, "t", "c")
    for change in ("/topic/delete?topic=t", "/channel/empty?topic=t&channel=c"):
        publish(node, "t", 0, 5000)
        rows = Frame(nsqd=node.http_address, topic="t").rows()
        found = [next(rows)]

        node.request("POST", change)
        create(node, "t", "c")
        publish(node, "t", 9000, 10)
        found += rows

        assert sorted(found) == sorted(b"m%d" % number for number in range(5000))
        assert places(node) == {("t", "c", "ready"): 10}
        node.request("POST", "/channel/empty?topic=t&channel=c")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_node_that_was_started_again_since_the_plan(
    node: DaemonProcess, *, is_killed: bool
) -> None:
    create(node, "t", "c")
    publish(node, "t", 0, 12_000)
    with snapshot(nsqd=node.http_address) as options:
        if is_killed:
            node.kill()
        else:
            node.stop()
        node.start()
        with pytest.raises(SegmentLostError, match=r"LEASE_NOT_FOUND.* nsqd was started again"):
            read_table(None, ("id",), **options)
        lenient = options | {"failOnDataLoss": "false"}
        assert len(read_table(None, ("id",), **lenient)) == 0
        assert {row["kind"] for row in read_corruptions(None, **lenient)} == {"unreachable"}

    if not is_killed:
        assert places(node) == {("t", "c", "ready"): 12_000}


def test_a_node_that_hangs_in_mid_read(node: DaemonProcess) -> None:
    create(node, "t", "c")
    publish(node, "t", 0, 5000)
    frame = Frame(nsqd=node.http_address, topic="t", timeout="1", retries="6")

    node.suspend()
    with pytest.raises(NodeError, match=rf"node {node.http_address} cannot be reached: timed out"):
        list(frame.rows())
    node.resume()

    assert len(list(frame.rows())) == 5000


def test_the_original_nsqd_in_a_fleet(
    tmp_path: Path, node: DaemonProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    program = find_go_program("nsqd")
    if program is None:
        pytest.skip("the original nsqd is not on PATH")
    create(node, "t", "c")
    publish(node, "t", 0, 100)
    with ExitStack() as stack:
        original = stack.enter_context(DaemonProcess(tmp_path / "go", command=(program,)))
        publish(original, "t", 100, 70)
        lookupd = stack.enter_context(
            Lookupd((node.http_address, "a"), (original.http_address, "b"))
        )
        place = ["--lookupd", lookupd.address]

        assert main(["count", *place]) == 1
        assert (
            f"node {original.http_address}: 404 NOT_FOUND: it does not serve its queues. The"
            " original nsqd does not: read its data path instead"
        ) in capsys.readouterr().err
        assert main(["count", *place, "--skip-consumed"]) == 0
        assert "100 messages, 290 B, 1 damaged place" in capsys.readouterr().err

        original.stop()
        assert main(["count", str(original.data_path)]) == 0
        assert "70 messages" in capsys.readouterr().err
