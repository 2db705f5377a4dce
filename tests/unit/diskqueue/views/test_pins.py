"""Pins: the bytes of a file stay for its readers, whatever becomes of its name."""

import os
from pathlib import Path

import pytest

from diskqueue.checksums.marks import have_same_mark, mark
from diskqueue.views.pins import Pin, Pins
from tests.support.call_faults import FreedDescriptor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.diskqueue.000000.dat"
    path.write_bytes(b"records")
    return path


def read(pins: Pins, pin: Pin) -> bytes:
    fd = pins.open(pin)
    try:
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


def open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_that_stays_costs_nothing(path: Path) -> None:
    pins = Pins()
    before = open_count()

    pin = pins.pin(str(path))

    assert open_count() == before
    assert read(pins, pin) == b"records"


def test_a_removed_file_is_there_until_the_last_pin_goes(path: Path) -> None:
    pins = Pins()
    before = open_count()
    first, second = pins.pin(str(path)), pins.pin(str(path))

    pins.keep(str(path))
    path.unlink()
    path.write_bytes(b"of another queue")

    assert read(pins, first) == read(pins, second) == b"records"
    pins.release(first)
    with pytest.raises(FileNotFoundError):
        pins.open(first)
    assert read(pins, second) == b"records"
    pins.release(second)
    pins.release(second)
    assert open_count() == before


def test_a_pin_on_the_new_file_of_the_same_name_is_another(path: Path) -> None:
    pins = Pins()
    old = pins.pin(str(path))
    pins.keep(str(path))
    path.unlink()
    path.write_bytes(b"new")
    new = pins.pin(str(path))

    assert (read(pins, old), read(pins, new)) == (b"records", b"new")
    pins.release(old)
    assert read(pins, new) == b"new"


def test_a_file_without_a_pin_is_not_opened(path: Path) -> None:
    pins = Pins()
    pins.release(pins.pin(str(path)))
    before = open_count()

    pins.keep(str(path))

    assert open_count() == before


def test_a_reader_loses_a_file_that_cannot_be_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pins = Pins()
    pin = pins.pin(str(path))

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        pins.keep(str(path))

    assert "a reader loses a segment" in caplog.text
    with pytest.raises(FileNotFoundError):
        pins.open(pin)


def read_checksums(pins: Pins, pin: Pin) -> tuple[bytes, bool]:
    fd, is_marked = pins.open_checksums(pin)
    try:
        return os.pread(fd, 100, 0), is_marked
    finally:
        os.close(fd)


def test_checksums_are_held_with_their_segment(path: Path) -> None:
    checksums = path.with_suffix(".crc")
    checksums.write_bytes(b"checksums")
    pins = Pins()
    before = open_count()
    pin = pins.pin(str(path))
    assert read_checksums(pins, pin) == (b"checksums", False)

    pins.keep(str(path))
    for each in (path, checksums):
        each.unlink()
        each.write_bytes(b"of another queue")

    assert read_checksums(pins, pin) == (b"checksums", False)
    assert read(pins, pin) == b"records"
    pins.release(pin)
    with pytest.raises(FileNotFoundError):
        pins.open_checksums(pin)
    assert open_count() == before


def test_marks_are_told_before_and_after_the_files_are_removed(path: Path) -> None:
    checksums = path.with_suffix(".crc")
    checksums.write_bytes(b"checksums")
    mark(str(path), str(checksums))
    if not have_same_mark(str(path), str(checksums)):
        pytest.skip("the file system has no extended attributes")
    pins = Pins()
    pin = pins.pin(str(path))

    assert read_checksums(pins, pin) == (b"checksums", True)
    pins.keep(str(path))
    path.unlink()
    checksums.unlink()
    assert read_checksums(pins, pin) == (b"checksums", True)
    pins.release(pin)


def test_segment_without_checksums_has_none_later_either(path: Path) -> None:
    pins = Pins()
    pin = pins.pin(str(path))
    with pytest.raises(FileNotFoundError):
        pins.open_checksums(pin)

    pins.keep(str(path))
    path.with_suffix(".crc").write_bytes(b"of another queue")

    with pytest.raises(FileNotFoundError):
        pins.open_checksums(pin)
    pins.release(pin)


def test_a_file_that_is_gone_before_it_is_kept_is_lost(path: Path) -> None:
    pins = Pins()
    pin = pins.pin(str(path))
    path.unlink()

    pins.keep(str(path))
    path.write_bytes(b"of another queue")

    assert pin.is_lost
    with pytest.raises(FileNotFoundError):
        pins.open(pin)
    with pytest.raises(FileNotFoundError):
        pins.open_checksums(pin)


def test_pinned_files_have_any_descriptor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that was started with its stdin closed."""
    path.with_suffix(".crc").write_bytes(b"checksums")
    for number in (1, 2):
        descriptor = FreedDescriptor(monkeypatch)
        pins = Pins()
        pin = pins.pin(str(path))
        before = open_count()
        descriptor.begin(number)

        pins.keep(str(path))
        assert read(pins, pin) == b"records"
        fd, _ = pins.open_checksums(pin)
        assert os.pread(fd, 100, 0) == b"checksums"
        os.close(fd)
        pins.release(pin)

        assert descriptor.end()
        assert open_count() == before
