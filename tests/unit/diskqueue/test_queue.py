"""Appending, rolling, reading and the files that come of it."""

import os
import stat
from pathlib import Path

import pytest

from diskqueue import DiskQueue, QueueClosedError, RecordTooLargeError
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    consume,
    contents,
    drain,
    frame_all,
    framed,
    go_read_all,
    names,
    numbers,
    payload,
    read_metadata,
    records,
    segment_path,
)


def open_queue(directory: Path, max_bytes_per_file: int = 10 * RECORD_BYTES) -> DiskQueue:
    return DiskQueue(directory, "t", max_bytes_per_file=max_bytes_per_file)


def test_opening_creates_no_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)

    assert queue.read(10, 1000) is None
    queue.sync()

    assert names(tmp_path) == []
    assert (queue.depth, queue.outstanding_count, queue.unsynced_count) == (0, 0, 0)
    assert (queue.disk_bytes, queue.segment_count) == (0, 0)


def test_files_are_named_and_laid_out_as_go_diskqueue_does(tmp_path: Path) -> None:
    """D-1, D-2, D-3."""
    topic = DiskQueue(tmp_path, "orders")
    channel = DiskQueue(tmp_path, "orders:billing")
    topic.put([payload(0), payload(1)])
    channel.put([payload(2)])

    topic.close()
    channel.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "orders.diskqueue.000000.dat",
        "orders.diskqueue.meta.dat",
        "orders:billing.diskqueue.000000.dat",
        "orders:billing.diskqueue.meta.dat",
    ]
    assert (tmp_path / "orders.diskqueue.000000.dat").read_bytes() == records(0, 2)
    assert (tmp_path / "orders.diskqueue.meta.dat").read_bytes() == b"2\n0,0\n0,64\n"


def test_the_record_of_the_specification() -> None:
    """The bytes of spec section 2, to hold on to if everything else changes together."""
    data = bytes.fromhex("18e85c1a65bd140f0000") + b"189c4d2902e69002" + b"m3"
    assert framed(data).startswith(bytes.fromhex("0000001c18e85c1a65bd140f0000"))
    assert len(framed(data)) == RECORD_BYTES


def test_files_have_mode_0600(tmp_path: Path) -> None:
    """D-4."""
    queue = open_queue(tmp_path)
    queue.put([payload(0)])
    queue.close()

    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_segment_rolls_when_the_next_record_would_pass_the_limit(tmp_path: Path) -> None:
    """D-5."""
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    for number in range(7):
        queue.put([payload(number)])

    assert names(tmp_path) == ["000000.dat", "000001.dat", "000002.dat"]
    assert [segment_path(tmp_path, n).read_bytes() for n in range(3)] == [
        records(0, 3),
        records(3, 3),
        records(6, 1),
    ]
    assert (queue.segment_count, queue.disk_bytes) == (3, 7 * RECORD_BYTES)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_one_append_across_segments_rolls_as_single_ones_do(tmp_path: Path, before: int) -> None:
    """D-5: the batch is split at record boundaries, at the same places."""
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    for number in range(before):
        queue.put([payload(number)])

    queue.put([payload(number) for number in range(before, 11)])

    assert [segment_path(tmp_path, n).read_bytes() for n in range(4)] == [
        records(0, 3),
        records(3, 3),
        records(6, 3),
        records(9, 2),
    ]
    assert queue.depth == 11
    assert numbers(drain(queue)) == list(range(11))


@pytest.mark.parametrize("sizes", [[400], [28, 400], [400, 28], [28, 400, 28, 28, 500]])
def test_record_larger_than_a_segment_is_stored_alone(tmp_path: Path, sizes: list[int]) -> None:
    """D-6."""
    payloads = [payload(number, size) for number, size in enumerate(sizes)]
    one_by_one = tmp_path / "one"
    at_once = tmp_path / "all"
    for directory in (one_by_one, at_once):
        directory.mkdir()
    queue = open_queue(one_by_one, 100)
    for data in payloads:
        queue.put([data])
    other = open_queue(at_once, 100)
    other.put(payloads)

    assert names(one_by_one) == names(at_once)
    for number in range(len(names(one_by_one))):
        content = segment_path(one_by_one, number).read_bytes()
        assert content == segment_path(at_once, number).read_bytes()
        assert len(content) <= 100 or content in map(framed, payloads)
    assert drain(queue) == drain(other) == payloads


@pytest.mark.parametrize("batch_size", [1, 300])
def test_many_segments_need_few_descriptors(tmp_path: Path, batch_size: int) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=2 * RECORD_BYTES)
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(0, 300, batch_size):
        queue.put([payload(number % 100) for number in range(batch_size)])

    assert len(os.listdir("/proc/self/fd")) - before < 20
    queue.sync()
    assert len(drain(queue)) == 300
    queue.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [25, 127])
def test_size_outside_the_limits_is_refused(tmp_path: Path, size: int) -> None:
    queue = DiskQueue(tmp_path, "t", max_record_bytes=126)

    with pytest.raises(RecordTooLargeError) as caught:
        queue.put([b"x" * 26, b"x" * 126, b"x" * size])

    assert str(caught.value) == (
        f"invalid message write size ({size}) minMsgSize=26 maxMsgSize=126"
    )
    assert queue.depth == 0
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [26, 126])
def test_sizes_at_the_limits_are_accepted(tmp_path: Path, size: int) -> None:
    """D-26: an empty body is legal on disk."""
    queue = DiskQueue(tmp_path, "t", max_record_bytes=126)
    queue.put([payload(0, size)])

    assert drain(queue) == [payload(0, size)]


def test_read_honours_both_limits_and_numbers_the_records(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=1 << 20)
    queue.put([payload(number) for number in range(10)])

    by_count = queue.read(3, 1 << 20)
    by_bytes = queue.read(100, 2 * RECORD_BYTES + 1)
    rest = queue.read(100, 1 << 20)

    assert by_count is not None
    assert by_bytes is not None
    assert rest is not None
    assert [by_count.first, by_bytes.first, rest.first] == [0, 3, 5]
    assert [len(by_count), len(by_bytes), len(rest)] == [3, 2, 5]
    assert numbers([*by_count, *by_bytes, *rest]) == list(range(10))
    assert (queue.depth, queue.outstanding_count) == (0, 10)


def test_read_gives_one_record_even_if_it_is_larger_than_max_bytes(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t")
    large = payload(0, 600_000)
    queue.put([large, payload(1)])

    first = queue.read(10, 100)
    second = queue.read(10, 100)

    assert first is not None
    assert second is not None
    assert (list(first), list(second)) == ([large], [payload(1)])


def test_payload_slices_are_the_starts_and_ends(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([payload(1), payload(2, 100)])

    batch = queue.read(10, 1000)

    assert batch is not None
    assert [batch.data[start:end] for start, end in zip(batch.starts, batch.ends, strict=True)] == [
        payload(1),
        payload(2, 100),
    ]


def test_uniform_and_mixed_sizes_are_cut_alike(tmp_path: Path) -> None:
    """The shortcut for records of one size must see where the sizes change."""
    queue = open_queue(tmp_path, max_bytes_per_file=1 << 20)
    sizes = [40] * 20 + [41] + [40] * 20 + [296] * 20 + [40] * 9
    payloads = [payload(number % 100, size) for number, size in enumerate(sizes)]
    queue.put(payloads)

    assert drain(queue, max_records=33) == payloads


def test_reader_sees_appends_made_after_it_reached_the_tail(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    seen = []
    for number in range(20):
        queue.put([payload(number)])
        seen += drain(queue)

    assert numbers(seen) == list(range(20))


def test_consumed_segments_are_deleted_and_none_is_set_aside(tmp_path: Path) -> None:
    """D-7, and D-8: the reader is caught up each time the writer rolls."""
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    for number in range(10):
        queue.put([payload(number)])
        assert numbers(consume(queue)) == [number]

    assert names(tmp_path) == ["000003.dat", "meta.dat"]
    assert read_metadata(tmp_path) == (0, 3, 32, 3, 32)


def test_segment_with_an_unfinished_record_is_kept(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=2 * RECORD_BYTES)
    queue.put([payload(number) for number in range(6)])
    drain(queue)

    queue.commit([0, 2, 3, 4])
    queue.sync()
    assert names(tmp_path) == ["000000.dat", "000002.dat", "finished", "meta.dat"]
    assert read_metadata(tmp_path) == (3, 0, RECORD_BYTES, 2, 64)

    queue.commit([1])
    queue.sync()
    assert names(tmp_path) == ["000002.dat", "meta.dat"]
    assert read_metadata(tmp_path) == (1, 2, RECORD_BYTES, 2, 64)


def test_end_of_a_completed_segment_is_persisted_as_the_next_one(tmp_path: Path) -> None:
    """go-diskqueue would take a read position at the end of a completed segment for damage."""
    queue = open_queue(tmp_path, max_bytes_per_file=2 * RECORD_BYTES)
    queue.put([payload(number) for number in range(4)])
    batch = queue.read(2, 1000)
    assert batch is not None
    queue.commit([0, 1])
    queue.sync()

    assert read_metadata(tmp_path) == (2, 1, 0, 1, 64)
    assert numbers(go_read_all(tmp_path)) == [2, 3]


def test_closed_directory_is_exact_and_readable_by_go_diskqueue(tmp_path: Path) -> None:
    """D-11, D-13."""
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(number) for number in range(11)])
    batch = queue.read(5, 1000)
    assert batch is not None
    queue.commit([0, 1])
    queue.close()

    assert read_metadata(tmp_path) == (9, 0, 64, 3, 64)
    assert numbers(go_read_all(tmp_path)) == list(range(2, 11))


def test_closed_empty_queue_leaves_metadata_and_no_segment(tmp_path: Path) -> None:
    """D-11; quirk 9: the last consumed segment does not stay."""
    queue = open_queue(tmp_path)
    queue.put([payload(0), payload(1)])
    consume(queue)
    queue.close()

    assert names(tmp_path) == ["meta.dat"]
    assert read_metadata(tmp_path) == (0, 1, 0, 1, 0)
    assert go_read_all(tmp_path) == []

    queue = open_queue(tmp_path)
    queue.put([payload(2)])
    queue.close()
    assert names(tmp_path) == ["000001.dat", "meta.dat"]
    assert numbers(go_read_all(tmp_path)) == [2]


def test_unused_queue_leaves_metadata_when_closed(tmp_path: Path) -> None:
    """D-11: metadata exists for every queue."""
    open_queue(tmp_path).close()

    assert read_metadata(tmp_path) == (0, 0, 0, 0, 0)


def test_large_consumed_segment_is_freed_by_a_sync(tmp_path: Path) -> None:
    """Quirk 9, while running."""
    queue = open_queue(tmp_path, max_bytes_per_file=1 << 20)
    queue.put([payload(0, 100_000), payload(1, 100_000)])
    batch = queue.read(1, 1)
    assert batch is not None
    queue.commit([0])
    queue.sync()
    assert names(tmp_path) == ["000000.dat", "meta.dat"]

    consume(queue)
    assert names(tmp_path) == ["meta.dat"]
    assert read_metadata(tmp_path) == (0, 1, 0, 1, 0)
    assert (queue.disk_bytes, queue.segment_count) == (0, 0)

    queue.put([payload(2)])
    assert numbers(consume(queue)) == [2]


def test_percent_in_the_path_works(tmp_path: Path) -> None:
    """D-23, quirk 7."""
    directory = tmp_path / "100%d %s%06d"
    directory.mkdir()
    queue = open_queue(directory)
    queue.put([payload(0)])
    queue.close()

    assert names(directory) == ["000000.dat", "meta.dat"]
    assert numbers(drain(open_queue(directory))) == [0]


def test_numbers_grow_beyond_six_digits(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.meta.dat").write_text("0\n999999,0\n999999,0\n")
    queue = open_queue(tmp_path, max_bytes_per_file=RECORD_BYTES)
    queue.put([payload(0), payload(1)])

    assert names(tmp_path) == ["1000000.dat", "999999.dat", "meta.dat"]
    queue.close()
    assert numbers(drain(open_queue(tmp_path))) == [0, 1]


def test_advance_counts_records_as_read_without_touching_the_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=1 << 20)
    data, lengths = frame_all([payload(0), payload(1, 50)])
    queue.append(data, lengths)

    assert queue.advance(lengths) == 0
    assert (queue.depth, queue.outstanding_count) == (0, 2)
    queue.put([payload(2)])
    batch = queue.read(10, 1000)

    assert batch is not None
    assert (batch.first, list(batch)) == (2, [payload(2)])
    queue.commit([0])
    queue.sync()
    assert read_metadata(tmp_path)[:3] == (2, 0, 32)
    queue.commit([1])
    queue.sync()
    assert read_metadata(tmp_path)[:3] == (1, 0, 86)


def test_advance_crosses_segments(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(0), payload(1)])
    assert numbers(drain(queue)) == [0, 1]
    data, lengths = frame_all([payload(number) for number in range(2, 10)])
    queue.append(data, lengths)

    assert queue.advance(lengths[:5]) == 2
    assert queue.advance(lengths[5:]) == 7

    assert queue.depth == 0
    queue.commit(range(7))
    queue.sync()
    assert read_metadata(tmp_path) == (3, 2, 32, 3, 32)
    queue.put([payload(10)])
    assert numbers(drain(queue)) == [10]


def test_advance_of_nothing_is_harmless(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert queue.advance([]) == 0
    queue.append(b"", [])
    assert (queue.depth, queue.outstanding_count, names(tmp_path)) == (0, 0, [])


def test_closed_queue_refuses_everything(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.close()
    queue.close()

    with pytest.raises(QueueClosedError, match=r"^exiting$"):
        queue.put([payload(0)])
    with pytest.raises(QueueClosedError):
        queue.read(1, 1)
    with pytest.raises(QueueClosedError):
        queue.commit([0])
    with pytest.raises(QueueClosedError):
        queue.empty()
    queue.delete()
    assert names(tmp_path) == ["meta.dat"]


def test_larger_append_limit_takes_records_that_reading_only_suspects(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, "t", max_record_bytes=100, max_append_bytes=10_000)

    queue.put([b"a" * 50, b"b" * 5_000, b"c" * 50])

    batch = queue.read(10, 100_000)
    assert batch is not None
    rest = queue.read(10, 100_000)
    found = [*batch, *(rest or ())]
    while (more := queue.read(10, 100_000)) is not None:
        found += more
    assert found == [b"a" * 50, b"b" * 5_000, b"c" * 50]
    queue.close()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        *(("put", ([payload(0)],)), ("append", frame_all([payload(0)]))),
        *(("prepare_append", ([],)), ("undo_append", ([32],)), ("read", (1, 1))),
        *(("peek", (1, 1)), ("advance", ([32],)), ("commit", ([],)), ("prepare_sync", ())),
        *(("sync", ()), ("forget_all", ()), ("empty", ())),
    ],
)
def test_a_closed_queue_does_nothing_but_fail(
    tmp_path: Path, method: str, arguments: tuple[object, ...]
) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(number) for number in range(3)])
    queue.close()
    before = contents(tmp_path)

    with pytest.raises(QueueClosedError):
        getattr(queue, method)(*arguments)

    queue.close()
    assert not queue.delete()
    assert contents(tmp_path) == before


def test_unread_bytes_are_those_that_will_be_read_after_a_restart(tmp_path: Path) -> None:
    """Without the finished records among them, in this segment and behind it."""
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=5 * RECORD_BYTES)
    queue.put([payload(number) for number in range(14)])
    drain(queue)
    queue.commit([0, 2, 3, 7, 12])
    queue.close()

    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=5 * RECORD_BYTES)
    left = []
    while True:
        left.append((queue.depth, queue.unread_bytes))
        if queue.read(1, 1) is None:
            break

    assert left == [(count, count * RECORD_BYTES) for count in range(9, -1, -1)]
