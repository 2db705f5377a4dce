"""python -m diskqueue check: clean, running, crashed and damaged queues."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from diskqueue import DiskQueue, layout
from diskqueue.__main__ import main
from tests.unit.diskqueue.queue_files import (
    RECORD_BYTES,
    contents,
    damaged_records,
    drain,
    framed,
    payload,
    records,
    write_metadata,
    write_segment,
)


def leave_gap(directory: Path) -> None:
    """Records 4 and 25 of 30 are unfinished, three in a segment."""
    queue = DiskQueue(directory, "t", max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(number) for number in range(30)])
    while (batch := queue.read(100, 10_000)) is not None:
        last = batch.first + len(batch)
        queue.commit(number for number in range(batch.first, last) if number not in (4, 25))
    queue.close()


def fail_for_metadata(write: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
    def write_or_fail(path: str, content: bytes) -> None:
        if path.endswith("meta.dat"):
            raise OSError(errno.EIO, "the process was killed here")
        write(path, content)

    return write_or_fail


def test_check_of_a_clean_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = DiskQueue(tmp_path, "orders", max_bytes_per_file=2 * RECORD_BYTES)
    topic.put([payload(number) for number in range(5)])
    topic.read(1, 1)
    topic.commit([0])
    topic.close()
    DiskQueue(tmp_path, "orders:billing").close()
    before = contents(tmp_path)

    assert main(["check", str(tmp_path)]) == 0

    assert capsys.readouterr().out == (
        "topic orders\n"
        "  metadata  depth 4, read 0,32, write 2,32\n"
        "  segments  3, 160 bytes\n"
        "  records   4\n"
        "topic orders channel billing\n"
        "  metadata  depth 0, read 0,0, write 0,0\n"
        "  segments  0, 0 bytes\n"
        "  records   0\n"
        "2 queues, none damaged\n"
    )
    assert contents(tmp_path) == before


def test_check_knows_finished_records_and_gaps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_gap(tmp_path)
    (tmp_path / "t.diskqueue.due").write_bytes(b"entries of the broker")

    assert main(["check", str(tmp_path)]) == 0

    assert capsys.readouterr().out == (
        "topic t\n"
        "  metadata  depth 8, read 1,32, write 9,96\n"
        "  segments  3, 288 bytes\n"
        "  records   8, 6 finished\n"
        "  note      6 segments are consumed, though older ones are not\n"
        "1 queue, none damaged\n"
    )


def test_check_tells_a_segment_that_is_missing_beside_the_gaps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_gap(tmp_path)
    (tmp_path / "t.diskqueue.000008.dat").unlink()

    assert main(["check", str(tmp_path)]) == 1

    assert "DAMAGE    1 segments are missing" in capsys.readouterr().out


def test_check_of_a_crash_between_sidecar_and_metadata_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new sidecar does not have the gap that the start passes over."""
    leave_gap(tmp_path)
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(number) for number in range(30, 39)])
    first = queue.read(1, 10_000)
    assert first is not None
    drain(queue)
    queue.commit([first.first])  # record 4: the read position goes to 25, beyond the gap
    monkeypatch.setattr(layout, "write_atomically", fail_for_metadata(layout.write_atomically))
    with pytest.raises(OSError, match="killed here"):
        queue.sync()

    code = main(["check", str(tmp_path)])

    output = capsys.readouterr().out
    assert "the metadata was not written" in output
    assert code == 0, output


def test_check_knows_gaps_behind_the_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with segments that were to be deleted and of which the metadata knows nothing."""
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(0)])
    queue.sync()
    queue.put([payload(number) for number in range(1, 30)])
    drain(queue)
    queue.commit(range(1, 29))
    monkeypatch.setattr(layout, "write_atomically", fail_for_metadata(layout.write_atomically))
    with pytest.raises(OSError, match="killed here"):
        queue.sync()

    code = main(["check", str(tmp_path)])

    output = capsys.readouterr().out
    assert (code, "segments are" in output) == (0, False), output


def test_check_of_a_damaged_sidecar_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = DiskQueue(tmp_path, "t")
    queue.put([payload(number) for number in range(3)])
    queue.read(3, 1000)
    queue.commit([1])
    queue.close()
    (tmp_path / "t.diskqueue.finished").write_bytes(b"DQFINISH")

    assert main(["check", str(tmp_path)]) == 0

    output = capsys.readouterr().out
    assert "records   3\n" in output
    assert "note      finished records would be delivered again: only 8 bytes" in output


def test_check_of_a_running_queue_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D-24: the metadata is behind, and the last record may be half written."""
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=3 * RECORD_BYTES)
    queue.put([payload(0)])
    queue.sync()
    queue.put([payload(number) for number in range(1, 5)])
    with (tmp_path / "t.diskqueue.000001.dat").open("ab") as file:
        file.write(framed(payload(5))[:9])

    assert main(["check", str(tmp_path)]) == 0

    output = capsys.readouterr().out
    assert "records   5" in output
    assert "segment 0 has 2 records after the metadata" in output
    assert "segment 1 at offset 64: a record of 28 bytes runs past the end" in output


@pytest.mark.parametrize(
    ("content", "metadata", "expected"),
    [
        (damaged_records(), "5\n0,0\n0,160\n", "segment 0 at offset 64: invalid record size (-1)"),
        (damaged_records(), "1\n0,0\n0,32\n", "segment 0 at offset 64: invalid record size (-1)"),
        (records(0, 2)[:-1], "3\n0,0\n1,0\n", "segment 0 at offset 32: a record of 28 bytes"),
        (records(0, 2), "3\n0,0\n0,96\n", "segment 0 is shorter than position 96"),
        (records(0, 2), "3\n0,0\n3,32\n", "3 segments are missing"),
        (records(0, 2), "nonsense", "metadata: not the text of a metadata file: b'nonsense'"),
        (
            records(0, 2),
            "2\n1,0\n0,64\n",
            "metadata: the read position is beyond the write position",
        ),
    ],
)
def test_check_finds_damage(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    metadata: str,
    expected: str,
) -> None:
    write_segment(tmp_path, 0, content)
    write_metadata(tmp_path, metadata)

    assert main(["check", str(tmp_path)]) == 1

    output = capsys.readouterr().out
    assert f"  DAMAGE    {expected}" in output
    assert output.endswith("1 queue, 1 damaged\n")


def test_check_notes_what_a_start_repairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path, 0, records(0, 1))
    write_segment(tmp_path, 1, records(1, 2))
    write_metadata(tmp_path, "7\n1,0\n1,64\n")
    write_segment(tmp_path, 5, records(0, 1), name="u")
    (tmp_path / "u.diskqueue.000004.dat.bad").write_bytes(b"?")

    assert main(["check", str(tmp_path)]) == 0

    output = capsys.readouterr().out
    assert "segment 0 is consumed and not deleted yet" in output
    assert "depth 7 in the metadata, but 2 records" in output
    assert "no metadata: a start delivers every segment" in output
    assert f"set aside {tmp_path}/u.diskqueue.000004.dat.bad" in output


def make_checked(directory: Path, *groups: int) -> Path:
    """A closed queue with checksums, and an append for each number of records."""
    queue = DiskQueue(directory, "t", has_checksums=True)
    first = 0
    for count in groups:
        queue.put([payload(number) for number in range(first, first + count)])
        first += count
    queue.close()
    return directory / "t.diskqueue.000000.dat"


def change(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def run_check(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["check", str(directory)])
    return code, capsys.readouterr().out


def test_check_of_checksums_that_fit_tells_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_checked(tmp_path, 2, 3)

    code, output = run_check(tmp_path, capsys)

    assert (code, "DAMAGE" in output, "note" in output) == (0, False, False)


@pytest.mark.parametrize(
    ("file", "place", "expected"),
    [
        ("dat", 62, "segment 0 at offset 32: the checksum is wrong (32 bytes, 1 records)"),
        ("dat", 35, "segment 0: 1 lengths are wrong, and known by checksums"),
        ("crc", 9, "segment 0: 32 bytes of the checksum file are damaged"),
    ],
)
def test_check_tells_what_checksums_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, place: int, expected: str
) -> None:
    path = make_checked(tmp_path, 1, 1, 3)
    change(path.with_suffix(f".{file}"), place)

    code, output = run_check(tmp_path, capsys)

    assert (code, f"  DAMAGE    {expected}" in output) == (1, True), output
    # The length alone would be damage, too.
    assert output.count("DAMAGE") == (2 if place == 35 else 1)
    assert ("have no checksum" in output) is (file == "crc")


def test_check_notes_what_a_crash_leaves_of_checksums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_checked(tmp_path, 2, 3)
    checksums = path.with_suffix(".crc")
    entries = checksums.read_bytes()
    checksums.write_bytes(entries + entries + b"DQC1 and so")
    path.write_bytes(path.read_bytes()[: 4 * RECORD_BYTES])
    write_metadata(tmp_path, f"4\n0,0\n0,{4 * RECORD_BYTES}\n")

    code, output = run_check(tmp_path, capsys)

    assert (code, "DAMAGE" in output) == (0, False), output
    assert "ends with 11 bytes that are no entry" in output
    assert "32 bytes are missing that have a checksum" in output
    assert "2 places have more than one checksum" in output


def test_check_notes_records_without_a_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_checked(tmp_path, 2, 3)
    queue = DiskQueue(tmp_path, "t", max_bytes_per_file=7 * RECORD_BYTES)
    queue.put([payload(number) for number in range(5, 9)])
    queue.close()

    code, output = run_check(tmp_path, capsys)

    assert (code, "DAMAGE" in output) == (0, False), output
    assert "segment 0: 64 bytes have no checksum" in output
    assert "segment 1 has no checksum file" in output


def test_check_of_a_queue_without_checksums_does_not_miss_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path, 0, records(0, 2))
    write_metadata(tmp_path, "2\n0,0\n0,64\n")

    assert "checksum" not in run_check(tmp_path, capsys)[1]


def test_check_tells_checksums_of_another_segment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_checked(tmp_path, 2, 3)
    path.unlink()
    write_segment(tmp_path, 0, b"".join(framed(payload(n, 40)) for n in range(50, 53)))
    write_metadata(tmp_path, "3\n0,0\n0,132\n")

    code, output = run_check(tmp_path, capsys)

    assert code == 1
    assert "DAMAGE    segment 0: the checksum file is that of other records" in output
    assert "note" not in output


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("_check_segment", "segment 0 was consumed meanwhile"),
        ("sidecar.examine", "a segment was consumed meanwhile"),
    ],
)
def test_check_notes_a_segment_that_goes_while_it_looks(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    expected: str,
) -> None:
    make_checked(tmp_path, 2)

    def miss(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(f"diskqueue.tools.check.{function}", miss)

    code, output = run_check(tmp_path, capsys)

    assert (code, f"note      {expected}\n" in output) == (0, True), output
