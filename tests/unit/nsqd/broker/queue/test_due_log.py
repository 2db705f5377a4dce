"""DueLog: due times across restarts, torn writes, damage and clocks that are set."""

import errno
import os
from pathlib import Path

import pytest

from nsqd.broker.queue import due_log
from nsqd.broker.queue.due_log import DueLog
from tests.support.call_faults import FreedDescriptor

NOW_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
FIRST, SECOND, THIRD = (b"%016d" % number for number in range(3))


def reopen(directory: Path, now_ns: int = NOW_NS) -> dict[bytes, int]:
    return DueLog(directory, "t:c", now_ns).unread


def test_due_times_are_there_after_a_restart(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST, SECOND], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    log.add([THIRD], NOW_NS + 9 * SECOND_NS, NOW_NS, are_unread=True)
    assert log.unread == {THIRD: NOW_NS + 9 * SECOND_NS}

    assert reopen(tmp_path) == {
        FIRST: NOW_NS + SECOND_NS,
        SECOND: NOW_NS + SECOND_NS,
        THIRD: NOW_NS + 9 * SECOND_NS,
    }


def test_what_is_past_is_forgotten_and_the_last_entry_counts(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST, SECOND], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    log.add([FIRST], NOW_NS + 5 * SECOND_NS, NOW_NS, are_unread=False)
    log.add([THIRD], NOW_NS + 9 * SECOND_NS, NOW_NS, are_unread=False)
    log.add([THIRD], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)

    assert reopen(tmp_path, NOW_NS + 2 * SECOND_NS) == {FIRST: NOW_NS + 5 * SECOND_NS}


@pytest.mark.parametrize("torn_bytes", range(1, 36))
def test_an_entry_that_was_torn_off_is_written_over(tmp_path: Path, torn_bytes: int) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST, SECOND], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    path = tmp_path / "t:c.diskqueue.due"
    path.write_bytes(path.read_bytes()[:-torn_bytes])

    log = DueLog(tmp_path, "t:c", NOW_NS)
    assert log.unread.keys() == {FIRST}
    log.add([THIRD], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)

    assert reopen(tmp_path).keys() == {FIRST, THIRD}


def test_a_damaged_entry_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST, SECOND, THIRD], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    path = tmp_path / "t:c.diskqueue.due"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)

    assert reopen(tmp_path).keys() == {FIRST, THIRD}
    assert "due times damaged" in caplog.text
    assert "count=1" in caplog.text


def test_a_file_that_cannot_be_read_is_reported_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t:c.diskqueue.due").mkdir()

    assert reopen(tmp_path) == {}
    assert "due times can't be read" in caplog.text


def test_a_clock_that_was_set_back_does_not_keep_messages_back_longer(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST], NOW_NS + 10 * SECOND_NS, NOW_NS, are_unread=False)
    earlier_ns = NOW_NS - 3600 * SECOND_NS

    assert reopen(tmp_path, earlier_ns) == {FIRST: earlier_ns + 10 * SECOND_NS}


def test_a_clock_that_was_set_back_does_not_bring_what_was_deferred_since(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    earlier_ns = NOW_NS - 3600 * SECOND_NS
    log.add([FIRST], NOW_NS + 10 * SECOND_NS, NOW_NS, are_unread=False)
    log.add([SECOND], earlier_ns + 10 * SECOND_NS, earlier_ns, are_unread=False)

    assert reopen(tmp_path, earlier_ns + SECOND_NS) == {
        FIRST: earlier_ns + 10 * SECOND_NS,
        SECOND: earlier_ns + 10 * SECOND_NS,
    }


def test_replace_leaves_what_is_not_past_and_remove_none(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    log.add([THIRD], NOW_NS + 9 * SECOND_NS, NOW_NS, are_unread=False)
    later_ns = NOW_NS + 2 * SECOND_NS
    log.replace({SECOND: NOW_NS + 5 * SECOND_NS}, later_ns)
    left = {SECOND: NOW_NS + 5 * SECOND_NS, THIRD: NOW_NS + 9 * SECOND_NS}
    assert reopen(tmp_path, later_ns) == left
    assert (tmp_path / "t:c.diskqueue.due").stat().st_size == 2 * 36
    assert (tmp_path / "t:c.diskqueue.due").stat().st_mode & 0o777 == 0o600

    log.remove()

    assert list(tmp_path.iterdir()) == []


def test_the_log_does_not_grow_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_log, "_ROTATE_BYTES", 36 * 10)
    log = DueLog(tmp_path, "t:c", NOW_NS)
    now_ns = NOW_NS
    for number in range(1000):
        log.add([b"%016d" % number], now_ns + 5 * SECOND_NS, now_ns, are_unread=False)
        now_ns += SECOND_NS
        # Whoever is still deferred is always found.
        if number % 7 == 0:
            expected = {b"%016d" % each for each in range(max(0, number - 3), number + 1)}
            assert reopen(tmp_path, now_ns).keys() >= expected

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 36 * 40


def test_unread_messages_that_are_not_due_are_counted(tmp_path: Path) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST, SECOND], NOW_NS + SECOND_NS, NOW_NS, are_unread=True)
    log.add([THIRD, FIRST], NOW_NS + 9 * SECOND_NS, NOW_NS, are_unread=True)  # FIRST is a twin

    assert log.count_early(NOW_NS) == 3
    assert log.count_early(NOW_NS + 2 * SECOND_NS) == 2
    assert log.count_early(NOW_NS + 10 * SECOND_NS) == 0
    log.pop(FIRST)
    assert log.count_early(NOW_NS) == 3
    log.pop(FIRST)
    assert log.count_early(NOW_NS) == 2
    log.pop(SECOND)
    log.pop(b"unknown message!")
    assert log.count_early(NOW_NS) == 1
    assert DueLog(tmp_path, "t:c", NOW_NS).count_early(NOW_NS) == 3
    log.remove()
    assert log.count_early(NOW_NS) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_message_has_a_due_time_as_often_as_it_was_noted(tmp_path: Path, count: int) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    for _ in range(count):
        log.add([FIRST], NOW_NS + SECOND_NS, NOW_NS, are_unread=True)

    for each in (log, DueLog(tmp_path, "t:c", NOW_NS)):
        assert [each.pop(FIRST) for _ in range(count)] == [NOW_NS + SECOND_NS] * count
        assert each.pop(FIRST) == 0
        assert each.unread == {}


def test_a_pipe_of_its_name_is_set_aside_and_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "t:c.diskqueue.due"
    os.mkfifo(path)  # to open it would wait for a reader
    log = DueLog(tmp_path, "t:c", NOW_NS)

    log.add([FIRST], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)

    assert reopen(tmp_path).keys() == {FIRST}
    assert (tmp_path / "t:c.diskqueue.due.bad").is_fifo()


@pytest.mark.parametrize("step_ns", [-5 * SECOND_NS, 5 * SECOND_NS])
def test_due_times_are_read_on_the_clock_from_before_its_step(tmp_path: Path, step_ns: int) -> None:
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST], NOW_NS + 2 * SECOND_NS, NOW_NS, are_unread=False, step_ns=step_ns)
    log.add([SECOND], NOW_NS + 8 * SECOND_NS, NOW_NS, are_unread=False, step_ns=step_ns)

    log = DueLog(tmp_path, "t:c", NOW_NS + 3 * SECOND_NS, step_ns=step_ns)

    assert log.unread == {SECOND: NOW_NS + 8 * SECOND_NS}


@pytest.mark.usefixtures("closes_files")
def test_a_copy_has_the_due_times_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_log, "_ROTATE_BYTES", 36)
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST], NOW_NS + SECOND_NS, NOW_NS, are_unread=True)
    log.add([SECOND], NOW_NS + 5 * SECOND_NS, NOW_NS, are_unread=True)  # in another file
    assert len(list(tmp_path.iterdir())) == 2
    copies = [log.open_copy(NOW_NS + SECOND_NS), log.open_copy(NOW_NS)]
    log.add([THIRD], NOW_NS + 9 * SECOND_NS, NOW_NS, are_unread=True)

    log.remove()

    copies.append(log.open_copy(NOW_NS))
    assert [copy.has_files for copy in copies] == [True, True, False]
    # The first is due.
    assert copies[0].read() == {SECOND: NOW_NS + 5 * SECOND_NS}
    copies[1].close()
    assert [copy.has_files for copy in copies] == [False, False, False]


@pytest.mark.usefixtures("closes_files")
def test_a_copy_that_finds_no_descriptor_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_log, "_ROTATE_BYTES", 36)
    log = DueLog(tmp_path, "t:c", NOW_NS)
    log.add([FIRST], NOW_NS + SECOND_NS, NOW_NS, are_unread=True)
    log.add([SECOND], NOW_NS + SECOND_NS, NOW_NS, are_unread=True)
    log.close()
    real = os.open

    def refuse(path: str, *arguments: int) -> int:
        if not path.endswith(".old"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(OSError, match="Too many"):
        log.open_copy(NOW_NS)


@pytest.mark.usefixtures("closes_files")
def test_the_log_is_written_and_closed_with_any_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that was started with its stdin closed."""
    descriptor = FreedDescriptor(monkeypatch)
    log = DueLog(tmp_path, "t:c", NOW_NS)
    descriptor.begin(1)

    log.add([FIRST], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    log.add([SECOND], NOW_NS + SECOND_NS, NOW_NS, are_unread=False)
    log.close()

    assert descriptor.count == 1
    assert descriptor.end()
    assert reopen(tmp_path).keys() == {FIRST, SECOND}


def test_no_file_is_replaced_while_one_of_its_messages_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_log, "_ROTATE_BYTES", 3 * 36)
    log = DueLog(tmp_path, "t:c", NOW_NS)
    ids = [b"%016d" % number for number in range(20)]
    for number, message_id in enumerate(ids):
        # Each file has one that waits for long, not the last of it.
        due_ns = NOW_NS + (1000 if number % 4 == 1 else 1) * SECOND_NS
        log.add([message_id], due_ns, NOW_NS + number * 2 * SECOND_NS, are_unread=False)

    left = reopen(tmp_path, NOW_NS + 100 * SECOND_NS)

    assert left == dict.fromkeys(ids[1::4], NOW_NS + 1000 * SECOND_NS)
    # Nor does a restart forget it.
    log.close()
    later_ns = NOW_NS + 100 * SECOND_NS
    log = DueLog(tmp_path, "t:c", later_ns)
    for number in range(20, 30):
        log.add([b"%016d" % number], later_ns + SECOND_NS, later_ns, are_unread=False)
    assert reopen(tmp_path, NOW_NS + 200 * SECOND_NS) == left
