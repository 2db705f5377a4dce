"""VolatileDisk: a directory of which a power cut keeps what was fsynced, and no more is certain.

Three images of it can be asked for at any moment, each of which a cut may leave:

* `LOST`: the names of the last fsync of the directory, and the bytes of the last fsyncs of files;
* `NAMED`: all names, as a journal may have kept them, and the bytes of the last fsyncs;
* `ZEROED`: all names and sizes, but zeros for the bytes that no fsync covers.

An fsync that fails drops the bytes that it was to write, as Linux does: a later one that succeeds
does not write them.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest

# After these the images may be others.
_CHANGES = ("fsync", "replace", "rename", "unlink", "link")


class Cut(Enum):
    """What a power cut leaves."""

    LOST = auto()
    NAMED = auto()
    ZEROED = auto()


class _File:
    """A file, by its inode: it may have several names, or none any more."""

    def __init__(self, fd: int) -> None:
        # Holds the inode, so that its number stays that of this file.
        self.fd = fd
        self.synced = bytearray()
        # Since the last fsync.
        self.written: list[tuple[int, int]] = []
        self.shortest: int | None = None

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def sync(self) -> None:
        if self.shortest is not None:
            del self.synced[self.shortest :]
        size_bytes = self.size_bytes
        self.synced = self.synced[:size_bytes].ljust(size_bytes, b"\0")
        for start, end in self.written:
            content = os.pread(self.fd, end - start, start)
            self.synced[start : start + len(content)] = content
        self.drop()

    def drop(self) -> None:
        self.written = []
        self.shortest = None


class VolatileDisk:
    """The files of one directory since it was empty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self._directory = directory
        # Two files are fsynced at a time, by two threads: an image has all of an fsync or nothing.
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._synced_names: dict[str, int] = {}
        # Called after each call that may have changed an image.
        self.on_change: Callable[[], None] = lambda: None
        # The number of the fsync that fails, counted from 1; 0 for none.
        self.failing_fsync = 0
        self.fsync_count = 0
        self._open = os.open
        monkeypatch.setattr(os, "open", self._note_open)
        for name, note in (
            ("pwrite", self._note_write),
            ("pwritev", self._note_write),
            ("ftruncate", self._note_truncate),
            ("truncate", self._note_truncate),
        ):
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name), note))
        monkeypatch.setattr(os, "fsync", self._fsync)
        for name in _CHANGES[1:]:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name), self._note_change))

    def close(self) -> None:
        """Let the files go."""
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()

    def cut(self, kind: Cut) -> dict[str, bytes]:
        """Return the names and contents that a power cut leaves."""
        with self._lock:
            names = self._synced_names if kind is Cut.LOST else self._find_names()
            image = {}
            for name, inode in names.items():
                file = self._files[inode]
                content = bytes(file.synced)
                if kind is Cut.ZEROED:
                    content = content[: file.size_bytes].ljust(file.size_bytes, b"\0")
                image[name] = content
            return image

    def _find_names(self) -> dict[str, int]:
        with os.scandir(self._directory) as entries:
            return {entry.name: entry.inode() for entry in entries}

    def _note_open(self, path: Any, flags: int, *arguments: Any) -> int:
        fd = self._open(path, flags, *arguments)
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            if status.st_ino not in self._files:
                own_fd = self._open(f"/proc/self/fd/{fd}", os.O_RDONLY)
                self._files[status.st_ino] = _File(own_fd)
            if flags & os.O_TRUNC:
                self._files[status.st_ino].shortest = 0
        return fd

    def _wrap(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def do_and_note(*arguments: Any) -> Any:
            result = call(*arguments)
            note(result, *arguments)
            return result

        return do_and_note

    def _find(self, file: int | str) -> _File:
        return self._files[os.stat(file).st_ino]

    def _note_write(self, count: int, fd: int, _content: object, position: int) -> None:
        self._find(fd).written.append((position, position + count))

    def _note_truncate(self, _result: None, file: int | str, size: int) -> None:
        found = self._find(file)
        found.shortest = size if found.shortest is None else min(found.shortest, size)

    def _note_change(self, *_arguments: object) -> None:
        self.on_change()

    def _fsync(self, fd: int) -> None:
        status = os.fstat(fd)
        is_directory = stat.S_ISDIR(status.st_mode)
        with self._lock:
            self.fsync_count += 1
            if self.fsync_count == self.failing_fsync:
                if not is_directory:
                    self._files[status.st_ino].drop()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if is_directory:
                self._synced_names = self._find_names()
            else:
                self._files[status.st_ino].sync()
            self.on_change()
