"""python -m diskqueue: its output, its exit codes, and that it changes no file."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from diskqueue import DiskQueue
from diskqueue.__main__ import main
from tests.unit.diskqueue.queue_files import (
    NAME,
    contents,
    damaged_records,
    drain,
    frame_all,
    framed,
    numbers,
    payload,
    records,
    segment_path,
    write_metadata,
    write_segment,
)

pytestmark = pytest.mark.usefixtures("closes_files")


@pytest.mark.parametrize("command", ["dump", "salvage"])
@pytest.mark.parametrize("kind", ["finished", "due", "meta.dat"])
def test_files_without_records_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
) -> None:
    path = tmp_path / f"t.diskqueue.{kind}"
    path.write_bytes(records(0, 1))

    assert main([command, str(path)]) == 2

    assert capsys.readouterr().err == f"diskqueue: {path} is no segment\n"


def test_dump_prints_a_line_per_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "grüße\n\x00".encode() + b"\xff" + b"x" * 50
    path = write_segment(tmp_path, 0, records(0, 1) + framed(payload(1)[:26] + body))

    assert main(["dump", str(path)]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "         0  2023-11-14T22:13:20.000000000Z  attempts=0  id=0000000000000000  size=2  00",
        "        32  2023-11-14T22:13:20.000000001Z  attempts=0  id=0000000000000001"
        rf"  size=60  grüße\n\x00\xff{'x' * 30}...",
    ]


def test_dump_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, records(0, 2) + framed(payload(2)[:26] + b"\xff"))

    assert main(["dump", str(path), "--json", "--bodies"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == {
        "offset": 32,
        "timestamp": "2023-11-14T22:13:20.000000001Z",
        "timestamp_ns": 1_700_000_000_000_000_001,
        "attempts": 0,
        "id": "0000000000000001",
        "size": 2,
        "body": "01",
    }
    assert lines[2]["body_base64"] == "/w=="


def test_dump_previews_and_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, records(0, 5))

    assert main(["dump", str(path), "--json", "--limit", "2"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["preview"] for line in lines] == ["00", "01"]


def test_dump_of_whole_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, framed(payload(0, 200)))

    assert main(["dump", str(path), "--bodies"]) == 0

    assert capsys.readouterr().out.endswith("  00" + "." * 172 + "\n")


def test_dump_of_an_impossible_timestamp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = struct.pack(">qH16s", 2**63 - 1, 0, b"x" * 16)
    path = write_segment(tmp_path, 0, framed(data) + framed(b"\x80" + b"\x00" * 25))

    assert main(["dump", str(path)]) == 0

    first, second = capsys.readouterr().out.splitlines()
    assert "2262-04-11" in first
    assert "1677-09-21" in second


def test_dump_stops_at_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, damaged_records())

    assert main(["dump", str(path)]) == 1

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert captured.err == f"diskqueue: {path} at offset 64: invalid record size (-1)\n"


def test_salvage_writes_a_good_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, damaged_records())
    before = contents(tmp_path)

    assert main(["salvage", str(path)]) == 1

    output = tmp_path / "t.diskqueue.000000.dat.salvaged"
    assert output.read_bytes() == records(0, 2) + records(3, 2)
    assert output.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out == (
        "doubtful  32..64  kept, but damage follows it\n"
        "lost      64..96  32 bytes\n"
        f"kept 4 records (1 doubtful), 128 bytes, in {output}; lost 32 bytes\n"
    )
    assert {name: found for name, found in contents(tmp_path).items() if name in before} == before
    assert numbers(drain(DiskQueue(tmp_path, "t"))) == [0, 1]


def test_salvaged_records_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_segment(tmp_path, 0, records(0, 3) + b"\xff" * 10)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))

    assert main(["salvage", str(path)]) == 1

    assert len(records(0, 3)) in synced


def test_salvaged_records_are_delivered_as_the_help_says(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, damaged_records())
    write_metadata(tmp_path, "5\n0,0\n0,160\n")
    queue = DiskQueue(tmp_path, "t")
    assert numbers(drain(queue)) == [0, 1]
    queue.commit([0, 1])
    queue.put([payload(7)])
    queue.close()

    main(["salvage", str(tmp_path / "t.diskqueue.000000.dat.bad")])
    salvaged = tmp_path / "t.diskqueue.000000.dat.bad.salvaged"
    salvaged.rename(tmp_path / "t.diskqueue.000002.dat")

    queue = DiskQueue(tmp_path, "t")
    assert queue.depth == 5
    assert numbers(drain(queue)) == [7, 0, 1, 3, 4]


def test_salvage_of_a_good_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, records(0, 2))

    assert main(["salvage", str(path), "--output", str(tmp_path / "out")]) == 0

    assert (tmp_path / "out").read_bytes() == records(0, 2)
    assert "kept 2 records (none doubtful), 64 bytes" in capsys.readouterr().out


def test_salvage_of_garbage_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_segment(tmp_path, 0, b"\xff" * 100)

    assert main(["salvage", str(path)]) == 1

    assert capsys.readouterr().out == "lost      0..100  100 bytes\nnothing kept; lost 100 bytes\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_salvage_of_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, b"")

    assert main(["salvage", str(path)]) == 0
    assert "is empty" in capsys.readouterr().out


def test_salvage_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_segment(tmp_path, 0, damaged_records())

    assert main(["salvage", str(path), "--output", str(path)]) == 2

    assert path.read_bytes() == damaged_records()
    assert capsys.readouterr().err == f"diskqueue: {path}: File exists\n"


@pytest.mark.parametrize("command", ["check", "dump", "salvage"])
def test_unreadable_path_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    missing = tmp_path / "missing"

    assert main([command, str(missing)]) == 2

    assert capsys.readouterr().err == f"diskqueue: {missing}: No such file or directory\n"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["check"], ["dump", "x", "--limit", "-1"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "usage: python -m diskqueue" in capsys.readouterr().err


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env=environment,
    )


def test_module_runs_as_a_program(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, damaged_records())

    assert run_module("-m", "diskqueue", "check", str(tmp_path)).returncode == 1
    result = run_module("-m", "diskqueue", "--help")

    assert result.returncode == 0
    assert all(command in result.stdout for command in ("check", "dump", "salvage"))
    assert path.read_bytes() == damaged_records()


def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, records(0, 90) * 200)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "diskqueue", "dump", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=20) == 0


def test_import_needs_no_event_loop_and_no_thread_pool() -> None:
    """Executors of other programs get this package alone."""
    program = """
import sys
already = set(sys.modules)
for name in ("asyncio", "uvloop", "concurrent.futures", "multiprocessing", "nsqd", "lookupd"):
    sys.modules[name] = None
sys.modules["isal"] = None  # used where it is installed
sys.modules["diskqueue._compiled"] = None  # used where it was built
import diskqueue, diskqueue.__main__, diskqueue.segment, diskqueue.layout, diskqueue.envelope
added = {name.partition(".")[0] for name in sys.modules.keys() - already if sys.modules[name]}
print(sorted(added - sys.stdlib_module_names))
"""
    result = run_module("-c", program)

    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        "['diskqueue']\n",
        "",
    )


def test_salvage_leaves_out_what_its_checksum_denies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payloads = [payload(number, 40) for number in range(6)]
    queue = DiskQueue(tmp_path, NAME, has_checksums=True)
    queue.put(payloads)
    queue.close()
    path = segment_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[2 * 44 + 41] ^= 1  # a body
    data[4 * 44 + 2] ^= 1  # a length
    path.write_bytes(data)

    assert main(["check", str(tmp_path)]) == 1
    assert "segment 0 at offset 88: the checksum is wrong" in capsys.readouterr().out
    assert main(["salvage", str(path)]) == 1

    assert "lost      88..132" in capsys.readouterr().out
    kept = Path(f"{path}.salvaged").read_bytes()
    assert kept == frame_all(payloads[:2] + payloads[3:])[0]


def test_salvage_keeps_records_without_a_checksum_between_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payloads = [payload(number, 40) for number in range(9)]
    for first, has_checksums in ((0, False), (3, True), (6, False)):
        queue = DiskQueue(tmp_path, NAME, has_checksums=has_checksums)
        queue.put(payloads[first : first + 3])
        queue.close()
    path = segment_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    for record in (1, 4, 7):
        data[record * 44] ^= 0x40  # a length
    path.write_bytes(data)

    assert main(["salvage", str(path)]) == 1

    # That of the fourth is repaired.
    kept = [number for number in range(9) if number not in (1, 7)]
    assert Path(f"{path}.salvaged").read_bytes() == frame_all([payloads[n] for n in kept])[0]
    output = capsys.readouterr().out
    assert "lost      44..88  44 bytes" in output
    assert "lost      308..352  44 bytes" in output


def test_output_that_nobody_reads_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_segment(tmp_path, 0, records(0, 3))
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with open(write_fd, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)

        assert main(["dump", str(path)]) == 0

        assert os.readlink(f"/proc/self/fd/{write_fd}") == os.devnull
