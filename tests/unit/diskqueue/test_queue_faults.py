"""Each system call of a queue fails, once or for good: no record is lost, no refused one comes.

And whatever fails, the files are closed at the end.
"""

from pathlib import Path

import pytest

from tests.support.call_faults import CallFaults, FreedDescriptor
from tests.unit.diskqueue.player import Player
from tests.unit.diskqueue.queue_files import numbers

CALLS = ("open", "dup", "pwrite", "pread", "fsync", "ftruncate", "replace", "unlink", "fstat")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> CallFaults:
    return CallFaults(monkeypatch, CALLS)


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_call_that_fails_costs_no_record(
    tmp_path: Path, faults: CallFaults, name: str, *, is_lasting: bool, has_checksums: bool
) -> None:
    (tmp_path / "0").mkdir()
    Player(tmp_path / "0", has_checksums=has_checksums).play()
    assert faults.counts[name] or (name == "fstat" and not has_checksums)

    for number in range(1, faults.counts[name] + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        faults.begin()
        player = Player(directory, has_checksums=has_checksums)
        faults.begin(name, number, is_lasting=is_lasting)

        player.play()

        faults.begin()
        found = player.read_again()
        accepted = set(player.accepted)
        assert found == sorted(found), number
        assert accepted - set(player.finished) <= set(found) <= accepted, number
        if not is_lasting:
            assert not [note for note in player.notes if "no entry" in note], number


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("max_count", [4, 100])
def test_a_call_that_fails_leaves_nothing_of_larger_appends(
    tmp_path: Path, faults: CallFaults, name: str, max_count: int, *, is_lasting: bool
) -> None:
    (tmp_path / "0").mkdir()
    Player(tmp_path / "0", has_checksums=True, max_count=max_count).undo_more()

    for number in range(1, faults.counts[name] + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        faults.begin()
        player = Player(directory, has_checksums=True, max_count=max_count)
        faults.begin(name, number, is_lasting=is_lasting)

        player.undo_more()

        faults.begin()
        assert player.read_again() == player.accepted, number
        if not is_lasting:
            assert not [note for note in player.notes if "no entry" in note], number


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("has_checksums", [False, True])
def test_a_call_that_fails_at_damage_costs_no_other_record(
    tmp_path: Path, faults: CallFaults, name: str, *, has_checksums: bool
) -> None:
    (tmp_path / "0").mkdir()
    player = Player(tmp_path / "0", has_checksums=has_checksums, max_count=100)
    faults.begin()
    player.find_damage()
    # Without a checksum the length of the record before the damage cannot be trusted.
    assert player.finished == ([0, 1, 3, 4, 5, 6] if has_checksums else [0, 3, 4, 5, 6])

    for number in range(1, faults.counts[name] + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        faults.begin()
        player = Player(directory, has_checksums=has_checksums, max_count=100)
        faults.begin(name, number)

        player.find_damage()

        faults.begin()
        queue = player.open()
        found = {*player.finished}
        while (batch := queue.read(100, 1 << 20)) is not None:
            found.update(numbers(list(batch)))
        queue.close()
        accepted = set(player.accepted)
        assert accepted - {*player.accepted[1:3]} <= found <= accepted, number


@pytest.mark.usefixtures("closes_files")
@pytest.mark.parametrize("has_checksums", [False, True])
def test_descriptor_0_is_one_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_checksums: bool
) -> None:
    """A daemon that was started with its stdin closed."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)
    descriptor = FreedDescriptor(monkeypatch)
    (tmp_path / "0").mkdir()
    descriptor.begin()
    Player(tmp_path / "0", has_checksums=has_checksums).play()
    call_count = descriptor.count
    assert descriptor.end()

    for number in range(1, call_count + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        descriptor.begin(number)
        player = Player(directory, has_checksums=has_checksums)

        player.play()

        assert descriptor.end(), number
        assert set(player.accepted) == set(range(13)), number
        assert player.read_again() == [n for n in range(13) if n not in player.finished], number
