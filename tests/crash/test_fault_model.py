"""The harness itself: what it takes for durable, what it expects, what it breaks."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faults.client import LinkEndedError
from tests.support.faults.drain import Drained, compare, drain
from tests.support.faults.fork_server import ForkServer
from tests.support.faults.journal import JournalWriter, Record, read_journal
from tests.support.faults.ledger import FIRST_CHANNEL, Ledger, WrongDeliveryError
from tests.support.faults.nsqd_process import NsqdProcess
from tests.support.faults.plan import Rule, kind_of
from tests.support.faults.power_cut import PowerCut, SendIndex

END = 1000
SEEDS = range(200)


def record(*entries: tuple[object, ...]) -> list[Record]:
    """A journal with these records at positions 0, 1, 2..."""
    return [
        Record(position, str(name), float(position), tuple(values))
        for position, (name, *values) in enumerate(entries)
    ]


@pytest.fixture
def outcomes(tmp_path: Path) -> Callable[..., set[tuple[tuple[str, bytes], ...]]]:
    """All directories that many seeds make of a cut."""

    def find(*entries: tuple[object, ...], at: int = END) -> set[tuple[tuple[str, bytes], ...]]:
        found = set()
        for seed in SEEDS:
            target = tmp_path / str(len(list(tmp_path.iterdir())))
            PowerCut(record(*entries), at).rebuild(target, random.Random(seed))
            files = sorted(path for path in target.rglob("*") if path.is_file())
            found.add(tuple((path.name, path.read_bytes()) for path in files))
        return found

    return find


CREATED = (("create", "a", 1), ("fsync", 1, ""), ("synced", 1))


def test_name_without_fsync_of_its_directory_may_be_gone(outcomes: Callable[..., object]) -> None:
    assert outcomes(("create", "a", 1)) == {(), (("a", b""),)}


def test_fsynced_content_of_a_fsynced_name_is_there(outcomes: Callable[..., object]) -> None:
    synced = (("write", 1, 0, b"content"), ("fsync", 2, 1), ("synced", 2))

    assert outcomes(*CREATED, *synced) == {(("a", b"content"),)}


def test_fsync_that_has_not_returned_promises_nothing(outcomes: Callable[..., object]) -> None:
    synced = (("write", 1, 0, b"xy"), ("fsync", 2, 1), ("synced", 2))

    found = outcomes(*CREATED, *synced, at=5)

    wanted = {b"", b"x", b"xy", b"\0\0"}
    assert found == {(("a", content),) for content in wanted}


def test_fsync_covers_only_what_was_written_before_it_began(
    outcomes: Callable[..., set[tuple[tuple[str, bytes], ...]]],
) -> None:
    entries = (("fsync", 2, 1), ("write", 1, 0, b"late"), ("synced", 2))

    found = outcomes(*CREATED, *entries)

    assert (("a", b""),) in found


def test_what_a_failed_fsync_covered_is_not_saved_by_the_next(
    outcomes: Callable[..., set[tuple[tuple[str, bytes], ...]]],
) -> None:
    failed = (("write", 1, 0, b"lost"), ("failed", 1), ("fsync", 2, 1), ("synced", 2))

    assert (("a", b""),) in outcomes(*CREATED, *failed)

    again = (("write", 1, 0, b"kept"), ("fsync", 3, 1), ("synced", 3))
    assert outcomes(*CREATED, *failed, *again) == {(("a", b"kept"),)}


def test_rename_is_done_or_not_done(outcomes: Callable[..., object]) -> None:
    entries = (
        *(("initial", "a", 1, b"old"), ("create", "a.tmp", 2), ("write", 2, 0, b"new")),
        *(("fsync", 1, 2), ("synced", 1), ("rename", "a.tmp", "a")),
    )

    assert outcomes(*entries) == {
        (("a", b"old"),),
        (("a", b"old"), ("a.tmp", b"new")),
        (("a", b"new"),),
    }
    assert outcomes(*entries, ("fsync", 2, ""), ("synced", 2)) == {(("a", b"new"),)}


def test_what_was_there_before_is_there_whenever_the_cut_comes(
    outcomes: Callable[..., object],
) -> None:
    entries = (("initial", "a", 1, b"old"), ("initial", "b", 2, b"old"), ("unlink", "b"))

    assert outcomes(*entries, at=1) == {(("a", b"old"), ("b", b"old"))}


def test_deletion_is_certain_after_an_fsync_of_the_directory(
    outcomes: Callable[..., object],
) -> None:
    entries = (("initial", "a", 1, b"old"), ("unlink", "a"))

    assert outcomes(*entries) == {(), (("a", b"old"),)}
    assert outcomes(*entries, ("fsync", 1, ""), ("synced", 1)) == {()}


def test_blocks_of_an_unsynced_write_come_in_any_order(
    outcomes: Callable[..., set[tuple[tuple[str, bytes], ...]]],
) -> None:
    found = outcomes(*CREATED, ("write", 1, 0, b"1" * 4096 + b"2" * 4096))

    assert (("a", bytes(4096) + b"2" * 4096),) in found
    # Torn at a sector: the length is there, and zeros for the rest.
    torn = [content.rstrip(b"\0") for ((_, content),) in found if len(content) == 8192]
    assert any(0 < len(content) < 4096 and len(content) % 512 == 0 for content in torn)


def test_send_is_found_by_the_bytes_that_a_client_has_read() -> None:
    sends = SendIndex(record(("send", 7, 10), ("send", 8, 10), ("send", 7, 20), ("send", 7, 10)))

    assert sends.find(7, 10, 0) == 0
    assert sends.find(7, 11, 0) == 2
    assert sends.find(7, 10, 3) == 3  # the port was used again
    with pytest.raises(LookupError):
        sends.find(7, 21, 0)


def test_journal_survives_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    writer = JournalWriter(path)
    writer.add("create", "a", 1)
    writer.add("write", 1, 0, b"content")
    os.truncate(path, path.stat().st_size - 1)

    assert [entry.name for entry in read_journal(path)] == ["create"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", "directory"),
        ("t.diskqueue.000001.dat", "segment"),
        ("t:c.diskqueue.000001.dat.bad", "bad"),
        ("t:c.diskqueue.000001.crc", "checksums"),
        ("t:c.diskqueue.000001.crc.bad", "bad"),
        ("t.diskqueue.meta.dat", "meta"),
        ("t.diskqueue.meta.dat.123.tmp", "meta"),
        ("t.diskqueue.finished", "finished"),
        ("t.diskqueue.due", "due"),
        ("nsqd.dat.77.tmp", "nsqd"),
        ("stray", "other"),
    ],
)
def test_kind_of_file(path: str, kind: str) -> None:
    assert kind_of(path) == kind


def test_rule_hits_its_turn_and_with_plus_all_later_ones() -> None:
    once, lasting = Rule.parse("EIO:write:segment:2"), Rule.parse("before:*:*:2+")

    assert [once.hits("write", "segment") for _ in range(3)] == [False, True, False]
    assert not once.hits("fsync", "segment")
    assert [lasting.hits("write", "meta") for _ in range(3)] == [False, True, True]
    with pytest.raises(ValueError, match="unknown action"):
        Rule.parse("explode:write:segment")


class _Link:
    """An acknowledgement that was read to some byte."""

    def __init__(self, port: int, read_bytes: int) -> None:
        self.port = port
        self.read_bytes = read_bytes


def test_ledger_requires_what_was_acknowledged_and_not_finished() -> None:
    ledger = Ledger()
    kept, finished, dropped = ledger.send("t", [b"kept", b"finished", b"dropped"])
    ledger.send("t", [b"never acknowledged"])
    ledger.acknowledge([kept, finished, dropped], _Link(1, 10))  # type: ignore[arg-type]
    ledger.finish("t", FIRST_CHANNEL, b"finished")
    ledger.book("t", FIRST_CHANNEL).dropped[b"dropped"] = 0

    expected = ledger.expect()

    assert expected.required["t", FIRST_CHANNEL] == {b"kept"}
    assert expected.allowed["t"] == {b"kept", b"finished", b"dropped", b"never acknowledged"}


def test_ledger_takes_the_positions_of_the_journal() -> None:
    now = [10]
    ledger = Ledger(lambda: now[0])
    batch = ledger.send("t", [b"m"])
    ledger.acknowledge(batch, _Link(7, 10))  # type: ignore[arg-type]
    now[0] = 30
    ledger.finish("t", FIRST_CHANNEL, b"m")
    sends = SendIndex([Record(20, "send", 0.0, (7, 10))])
    place = ("t", FIRST_CHANNEL)

    assert b"m" not in ledger.expect(5, sends).allowed["t"]  # not sent yet
    assert not ledger.expect(15, sends).required[place]  # not acknowledged yet
    assert ledger.expect(25, sends).required[place] == {b"m"}
    assert not ledger.expect(35, sends).required[place]  # perhaps finished


def test_ledger_knows_what_nobody_sent() -> None:
    ledger = Ledger()
    ledger.send("t", [b"m"])

    ledger.deliver("t", FIRST_CHANNEL, b"m", 1)
    with pytest.raises(WrongDeliveryError, match="not sent"):
        ledger.deliver("t", FIRST_CHANNEL, b"damaged", 1)
    with pytest.raises(WrongDeliveryError, match="attempts"):
        ledger.deliver("t", FIRST_CHANNEL, b"m", 9)


def test_comparison_tells_every_kind_of_fault() -> None:
    ledger = Ledger()
    batch = ledger.send("t", [b"lost", b"gone", b"fine"])
    ledger.acknowledge(batch, _Link(1, 1))  # type: ignore[arg-type]
    ledger.finish("t", FIRST_CHANNEL, b"gone")
    ledger.finish_for_sure("t", FIRST_CHANNEL, [b"gone"])
    drained = Drained(is_complete=True)
    drained.deliveries["t", FIRST_CHANNEL] = {
        b"gone": [1],
        b"fine": [1, 9],
        b"foreign": [1],
    }

    problems = compare(drained, ledger.expect(), are_doubles_allowed=False)

    assert problems == [
        "t:c0 lost: 1 (lost)",
        "t:c0 has what was never sent: 1 (foreign)",
        "t:c0 has again what was gone for sure: 1 (gone)",
        "t:c0 has wrong attempts of: 1 (fine)",
        "t:c0 has twice: 1 (fine)",
    ]


async def test_writes_that_go_round_the_watched_disk_are_noticed(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    nsqd = NsqdProcess(fork_server, tmp_path)
    await nsqd.start(has_journal=True)
    await drain(nsqd, ["t"])
    await nsqd.kill()

    assert nsqd.journal_path is not None
    names = {entry.name for entry in read_journal(nsqd.journal_path)}
    assert {"create", "write", "fsync", "synced", "rename", "send"} <= names


async def test_daemon_that_is_gone_ends_its_links() -> None:
    with pytest.raises(LinkEndedError):
        await asyncio.wait_for(_connect_to_nobody(), 5)


async def _connect_to_nobody() -> None:
    from tests.support.faults.client import TcpLink

    await TcpLink.open(1)
