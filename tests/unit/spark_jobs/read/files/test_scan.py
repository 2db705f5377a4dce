"""Slices come out as the rows that were written, for any layout, window and damage."""

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskqueue import DiskQueue, segment
from diskqueue.errors import CorruptSegmentError
from spark_jobs.read.columns import arrow_schema, message_schema
from spark_jobs.read.files import scan
from spark_jobs.read.files.scan import DamagedSegmentError, SegmentLostError, read_batches
from spark_jobs.read.plan import plan_messages
from tests.spark.data_dirs import (
    TIME_NS,
    Message,
    Row,
    content,
    message,
    messages,
    read_plainly,
    segment_path,
    write_queue,
    write_segment,
)
from tests.spark.in_process import parse, read_bodies, read_corruptions, read_rows, read_table
from tests.spark.odd_dirs import ODD_DIRECTORIES

RECORD = 50
READS = 200
BODY = arrow_schema(message_schema(("body",)))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WINDOW_BYTES", 100)


def test_rows_have_every_value(tmp_path: Path) -> None:
    write_queue(tmp_path, "orders", [messages(0, 3), messages(3, 2)], read=(0, RECORD))
    write_queue(tmp_path, "orders:ch", [messages(9, 2)])

    found = read_rows(tmp_path)

    assert found == read_plainly(tmp_path)
    assert found[0] == Row(
        "orders", None, 0, RECORD, TIME_NS + 1_000_007, 1, "0000000000000001", message(1).body
    )
    assert [row.channel for row in found] == [None] * 4 + ["ch"] * 2


@pytest.mark.parametrize("origin", ["backlog", "earliest"])
@pytest.mark.parametrize("make", ODD_DIRECTORIES, ids=lambda make: make.__name__)
def test_rows_equal_a_plain_walk(make: Callable[[Path], None], origin: str, tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.mkdir()
    make(path)
    expected = read_plainly(path, is_from_earliest=origin == "earliest")

    assert read_rows(path, **{"from": origin}) == expected
    assert read_rows(path, splitBytes="1k", **{"from": origin}) == expected
    assert expected
    read_corruptions(path, **{"from": origin})


records = st.builds(
    Message,
    st.one_of(
        st.binary(max_size=40), st.builds(lambda n: content(messages(0, n)), st.integers(0, 5))
    ),
    st.integers(-(2**62), 2**62),
    st.integers(0, 65535),
    st.binary(min_size=16, max_size=16),
)
queues = st.dictionaries(
    st.sampled_from(["a", "a:x", "b#ephemeral:y"]),
    st.lists(st.lists(records, max_size=12), max_size=4),
    max_size=3,
)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "node"


@settings(max_examples=150)
@given(queues, st.integers(40, 3000), st.sampled_from(["backlog", "earliest"]), st.data())
def test_any_records_in_any_layout(
    scratch: Path,
    segments_by_name: dict[str, list[list[Message]]],
    window_bytes: int,
    origin: str,
    data: st.DataObject,
) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name, segments in segments_by_name.items():
        read = (0, 0)
        if segments:
            number = data.draw(st.integers(0, len(segments) - 1))
            index = data.draw(st.integers(0, len(segments[number])))
            read = number, len(content(segments[number][:index]))
        write_queue(scratch, name, segments, read=read)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "WINDOW_BYTES", window_bytes)
        found = read_rows(scratch, **{"from": origin})
        split = read_rows(scratch, splitBytes="100", **{"from": origin})

    assert found == read_plainly(scratch, is_from_earliest=origin == "earliest")
    assert split == found


@settings(max_examples=200)
@given(st.lists(records, min_size=1, max_size=12), st.integers(40, 500), st.data())
def test_damage_ends_a_segment_where_diskqueue_ends_it(
    scratch: Path, written: list[Message], window_bytes: int, data: st.DataObject
) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    damaged = bytearray(content(written))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    path = write_segment(scratch, "t", 0, bytes(damaged))
    limits = segment.RecordLimits(max_record_bytes=60)
    expected, damage = [], None
    try:
        for offset, payload in segment.iter_records(str(path), limits=limits):
            expected.append((offset, payload[26:]))
    except CorruptSegmentError as error:
        damage = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "WINDOW_BYTES", window_bytes)
        found = read_table(scratch, ("offset", "body"), maxMsgSize=str(60 - 26)).to_pylist()
        reported = read_corruptions(scratch, maxMsgSize=str(60 - 26))

    assert [(row["offset"], row["body"]) for row in found] == expected
    places = [(row["kind"], row["reason"], row["offset"], row["bytes"]) for row in reported]
    if damage is None:
        assert places == []
    else:
        kind = "torn" if damage.is_torn else "damaged"
        assert places == [(kind, damage.reason, damage.offset, len(damaged) - damage.offset)]


@pytest.mark.usefixtures("small_windows")
def test_records_larger_than_a_window_and_than_the_limit(tmp_path: Path) -> None:
    sizes = [10, 99, 300, 0, 2 * 1024 * 1024, 5]
    write_queue(tmp_path, "t", [[message(n, size) for n, size in enumerate(sizes)]])

    found = read_bodies(tmp_path)

    assert [len(body) for body in found] == sizes
    assert read_rows(tmp_path) == read_plainly(tmp_path)


def test_failfast_names_file_and_offset(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "t", 0, content(messages(0, 2))[:-7])

    with pytest.raises(DamagedSegmentError, match=f"{path} at offset {RECORD}"):
        read_bodies(tmp_path, mode="FAILFAST")


def test_a_segment_consumed_after_planning(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1), messages(1, 1)])
    options = parse(tmp_path)
    [partition] = plan_messages(options)
    path = segment_path(tmp_path, "t", 0)
    path.unlink()

    with pytest.raises(SegmentLostError, match=str(path)):
        list(read_batches(partition.slices, BODY, options))

    lenient = parse(tmp_path, failOnDataLoss="false")
    [batch] = read_batches(partition.slices, BODY, lenient)
    assert batch["body"].to_pylist() == [message(1).body]


def test_what_is_appended_while_reading_is_not_read(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 2)])
    options = parse(tmp_path)
    [partition] = plan_messages(options)
    with segment_path(tmp_path, "t", 0).open("ab") as file:
        file.write(content(messages(2, 1)) + b"\0\0")

    [batch] = read_batches(partition.slices, BODY, options)

    assert batch["body"].to_pylist() == [message(0).body, message(1).body]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [messages(0, 1)])
    (tmp_path / "t.diskqueue.000000.dat").chmod(0)

    with pytest.raises(PermissionError, match=r"t\.diskqueue\.000000\.dat"):
        read_rows(tmp_path)


def test_a_file_uri_reads_the_same(tmp_path: Path) -> None:
    write_queue(tmp_path, "t#ephemeral:c", [messages(0, 3)])

    assert read_bodies(f"file://{tmp_path}") == read_bodies(tmp_path)
    assert len(read_bodies(tmp_path)) == 3


class BusyQueue(threading.Thread):
    """A thread that puts numbered messages, syncs now and then and consumes some, until `stop`."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__()
        self._queue = DiskQueue(directory, "t", max_bytes_per_file=3000)
        self._chance = random.Random(seed)
        self._must_stop = threading.Event()
        self.put_count = 0

    def run(self) -> None:
        chance = self._chance
        while not self._must_stop.is_set():
            bodies = [b"%09d" % (self.put_count + n) for n in range(chance.randint(1, 40))]
            # Before the put: a read sees its records before it has returned.
            self.put_count += len(bodies)
            self._queue.put([Message(body * 3).record()[4:] for body in bodies])
            if chance.random() < 0.3:
                self._queue.sync()
            if self._queue.depth > 400 or chance.random() < 0.2:
                batch = self._queue.read(chance.randint(1, 60), 1 << 20)
                if batch is not None:
                    self._queue.commit(range(batch.first, batch.first + len(batch)))
        self._queue.close()

    def stop(self) -> None:
        self._must_stop.set()
        self.join(30)


@pytest.mark.parametrize("seed", range(3))
def test_every_read_is_a_piece_of_the_queue_without_a_gap(seed: int, tmp_path: Path) -> None:
    queue = BusyQueue(tmp_path, seed)
    queue.start()
    complete_reads = lost_count = 0
    try:
        while complete_reads < READS and lost_count < 50 * READS:
            try:
                numbers = [int(body[:9]) for body in read_bodies(tmp_path, mode="FAILFAST")]
            except SegmentLostError:
                lost_count += 1
                continue
            if numbers:
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert numbers[-1] < queue.put_count
                complete_reads += 1
    finally:
        queue.stop()

    assert complete_reads == READS
