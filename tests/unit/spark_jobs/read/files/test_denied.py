"""verifyChecksums: messages that their checksums deny are damage."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue, envelope
from spark_jobs.read.files.scan import DamagedSegmentError
from tests.spark.data_dirs import TIME_NS
from tests.spark.in_process import parse, read_bodies, read_corruptions

BODIES = [b"message %02d" % number for number in range(10)]
RECORD_BYTES = 4 + 26 + 10


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A queue with a changed byte in the body of the fourth message."""
    queue = DiskQueue(tmp_path, "t", has_checksums=True)
    queue.put(
        envelope.encode(TIME_NS + number, 0, b"%016x" % number, body)
        for number, body in enumerate(BODIES)
    )
    queue.close()
    path = tmp_path / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    data[4 * RECORD_BYTES - 1] ^= 1
    path.write_bytes(data)
    return tmp_path


def test_denied_message_is_left_out_if_that_is_asked_for(damaged: Path) -> None:
    assert len(read_bodies(damaged)) == 10
    assert read_bodies(damaged, verifyChecksums="true") == BODIES[:3] + BODIES[4:]


def test_denied_message_is_damage(damaged: Path) -> None:
    with pytest.raises(DamagedSegmentError, match="at offset 120: the checksum is wrong"):
        read_bodies(damaged, verifyChecksums="true", mode="FAILFAST")
    assert "denied" in str(read_corruptions(damaged, verifyChecksums="true"))
    assert not read_corruptions(damaged)


def test_denied_message_is_not_salvaged(damaged: Path) -> None:
    for name in ("dat", "crc"):
        path = damaged / f"t.diskqueue.000000.{name}"
        path.rename(f"{path}.bad")
    (damaged / "t.diskqueue.meta.dat").unlink()
    options = {"includeBad": "true"}

    assert len(read_bodies(damaged, **options)) == 10
    found = read_bodies(damaged, verifyChecksums="true", **options)
    assert found == BODIES[:3] + BODIES[4:]


def test_running_nodes_have_no_checksum_files_to_read() -> None:
    with pytest.raises(ValueError, match="verifyChecksums reads the checksum files"):
        parse(None, nsqd="127.0.0.1:4151", verifyChecksums="true")
