"""A data directory that was damaged: what is intact is delivered, the rest is kept and told."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import wait_for
from tests.support.daemon_process import OURS, DaemonProcess
from tests.support.damaged_queues import BODIES, CASES, SALVAGE, QueueFiles, write_nsqd_dat
from tests.support.http_client import HttpClient
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import V2Client
from tests.support.waiting import until

CHANNEL = "ch"


async def connect(nsqd: DaemonProcess) -> V2Client:
    return await V2Client.connect(nsqd.address)


async def consume(nsqd: DaemonProcess, topic: str, count: int) -> list[bytes]:
    """Take and finish that many messages; there must be no more."""
    client = await connect(nsqd)
    await client.subscribe(topic, CHANNEL, rdy=100)
    bodies = []
    for _ in range(count):
        message = await client.read_message()
        client.fin(message)
        bodies.append(message.body)
    await client.expect_quiet()
    await client.close()
    return bodies


async def ping(http: HttpClient) -> str:
    return (await http.get("/ping")).text


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One nsqd on a directory in which each queue is damaged in another way."""
    directory = tmp_path_factory.mktemp("damaged")
    data = directory / "data"
    data.mkdir()
    write_nsqd_dat(data, list(CASES), CHANNEL)
    for name, damage in CASES.items():
        damage.spoil(QueueFiles(data, f"{name}:{CHANNEL}"))
    with DaemonProcess(directory, "--sync-timeout=100ms", data=data) as nsqd:
        yield nsqd


@pytest.mark.parametrize("name", CASES)
async def test_what_is_intact_is_delivered_and_the_queue_goes_on(
    damaged: DaemonProcess, name: str
) -> None:
    damage = CASES[name]
    expected = [BODIES[number] for number in damage.delivered]

    assert await consume(damaged, name, len(expected)) == expected

    lines = [line for line in damaged.log.splitlines() if f"{name}:{CHANNEL}" in line]
    assert any(damage.told in line for line in lines) or not damage.told, lines
    damaged.publish(name, b"goes on")
    assert await consume(damaged, name, 1) == [b"goes on"]
    if damage.told == SALVAGE:
        # At the latest when a sync has noted that what was before the damage is finished.
        await until(lambda: list(damaged.data_path.glob(f"{name}:{CHANNEL}.*.bad*")))


async def test_salvage_finds_in_what_was_kept_all_that_was_not_delivered_and_is_whole(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_nsqd_dat(data, ["t"], CHANNEL)
    files = QueueFiles(data, f"t:{CHANNEL}")
    files.flip_length(2, 6)
    with DaemonProcess(tmp_path, "--sync-timeout=100ms", data=data) as nsqd:
        await consume(nsqd, "t", 11)
        nsqd.stop()

    [kept] = data.glob("*.bad")
    salvaged = salvage(kept)

    assert all(BODIES[number] in salvaged for number in (0, 1, 3, 4))


def salvage(path: Path) -> bytes:
    command = [sys.executable, "-m", "diskqueue", "salvage", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return Path(f"{path}.salvaged").read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"noise \xff\xfe\x00",
        b"[" * 100_000,
        b"9" * 100_000,
        b'{"topics":[{"name":1}]}',
        b'{"topics":{}}',
        b'{"topics":[[]]}',
        None,  # a directory
    ],
    ids=["empty", "noise", "nested", "number", "name", "topics", "topic", "directory"],
)
def test_a_start_that_is_not_possible_says_why_in_one_line(
    tmp_path: Path, content: bytes | None
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    if content is None:
        (data / "nsqd.dat").mkdir()
    else:
        (data / "nsqd.dat").write_bytes(content)
    before = sorted(data.rglob("*"))
    nsqd = DaemonProcess(tmp_path, data=data)

    nsqd.spawn()

    assert nsqd.wait() == 1
    [line] = [line for line in nsqd.log.splitlines() if "FATAL" in line]
    assert "failed to load metadata - failed to " in line
    assert "nsqd.dat" in line
    assert len(line) < 500
    assert "Traceback" not in nsqd.log
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"topics":[{"name":"t","channels":[{"name":"ch"}]}]}',
        b"null",
        b"{}",
        b'{"topics":[{"name":"\\ud800"},{"name":"../../t"},{"name":""},{"name":"t"}]}',
        b'{"topics":[{"name":"t"},{"name":"t"}],"more":[1,2,3]}',
    ],
    ids=["bom", "null", "object", "names", "twice"],
)
def test_odd_metadata_does_not_keep_nsqd_from_starting(tmp_path: Path, content: bytes) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "nsqd.dat").write_bytes(content)
    with DaemonProcess(tmp_path, data=data) as nsqd:
        nsqd.publish("t", b"x")
        nsqd.stop()


def test_a_read_only_disk_is_told_at_the_start(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "data", 2**20)
    try:
        QueueFiles(disk.path, f"t:{CHANNEL}")
        disk.make_read_only()
        nsqd = DaemonProcess(tmp_path, data=disk.path)
        nsqd.spawn()
        assert nsqd.wait() == 1
        [line] = [line for line in nsqd.log.splitlines() if "FATAL" in line]
        assert "Read-only file system" in line
    finally:
        disk.close()


async def test_a_disk_that_turns_read_only_refuses_and_still_delivers(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "data", 2**20)
    try:
        write_nsqd_dat(disk.path, ["t"], CHANNEL)
        QueueFiles(disk.path, f"t:{CHANNEL}")
        flags = ("--mem-queue-size=0", "--sync-timeout=100ms")
        with DaemonProcess(tmp_path, *flags, data=disk.path) as nsqd:
            disk.make_read_only()
            async with await HttpClient.connect(("127.0.0.1", nsqd.http_port)) as http:
                reply = await http.post("/pub?topic=t", b"x")
                assert reply.error == (503, "DISK_ERROR: read-only file system")
                assert await consume(nsqd, "t", len(BODIES)) == BODIES
                assert (await ping(http)).startswith("NOK - ")

                disk.make_writable()
                await wait_for(lambda: ping(http), "OK")
                assert (await http.post("/pub?topic=t", b"x")).status == 200
    finally:
        disk.close()


# Root that obeys the permissions of files, as everybody else does.
_OBEDIENT = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)


@pytest.fixture
def obedient_command() -> tuple[str, ...]:
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv to take root's privileges away")
    done = subprocess.run([*_OBEDIENT, "true"], capture_output=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"setpriv can't take privileges away: {done.stderr.decode().strip()}")
    return (*_OBEDIENT, *OURS)


async def test_an_unreadable_segment_is_told_and_waited_for(
    tmp_path: Path, obedient_command: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_nsqd_dat(data, ["t", "other"], CHANNEL)
    files = QueueFiles(data, f"t:{CHANNEL}")
    files.segment(0).chmod(0)
    with DaemonProcess(tmp_path, command=obedient_command, data=data) as nsqd:
        client = await connect(nsqd)
        await client.subscribe("t", CHANNEL, rdy=100)
        nsqd.publish("other", b"unharmed")
        assert await consume(nsqd, "other", 1) == [b"unharmed"]
        async with await HttpClient.connect(("127.0.0.1", nsqd.http_port)) as http:
            assert await ping(http) == f"NOK - read t:{CHANNEL}: permission denied"
            files.segment(0).chmod(0o600)
            assert [message.body for message in await client.read_messages(12)] == BODIES
            assert await ping(http) == "OK"
        await client.close()


def test_unreadable_metadata_is_told_at_the_start(
    tmp_path: Path, obedient_command: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_nsqd_dat(data, ["t"], CHANNEL)
    QueueFiles(data, f"t:{CHANNEL}").metadata.chmod(0)
    nsqd = DaemonProcess(tmp_path, command=obedient_command, data=data)

    nsqd.spawn()

    assert nsqd.wait() == 1
    [line] = [line for line in nsqd.log.splitlines() if "FATAL" in line]
    assert "failed to open a queue - [Errno 13] Permission denied" in line
