"""Folders: where files are written and where they go when they are finished.

With a work directory a file is moved when it is closed, and never over another one: a hard link to
the new name, a sync of its directory, then the old name goes. At each moment one of the names is
certain. Between two file systems it is copied, synced and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Final

from nsqd.cli.sinks.files.names import REV, with_rev
from nsqd.cli.sinks.files.output_file import OutputFile, sync_directory

_COPY_BYTES: Final = 1 << 20
_PART: Final = ".part"
# The errors of a file system that has no hard links, or none between file systems.
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class Folders:
    """The two directories; the same one twice if there is no work directory."""

    output_dir: str
    work_dir: str
    gzip_level: int | None = None
    # Whether a file that exists is continued; otherwise each file is a new revision.
    is_appending: bool = False
    max_bytes: int = 0  # a file that is larger is not continued; 0 for any size

    @property
    def has_work_dir(self) -> bool:
        """Whether files move when they are closed."""
        return self.work_dir != self.output_dir

    def prepare(self) -> None:
        """Make both directories.

        Raises:
            OSError: they cannot be made, or not be written to.
        """
        for path in dict.fromkeys((self.output_dir, self.work_dir)):
            os.makedirs(path, 0o770, exist_ok=True)
            with contextlib.suppress(PermissionError):  # A parent of another user.
                sync_directory(os.path.dirname(os.path.abspath(path)))
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def open(self, name: str, rev: int) -> tuple[OutputFile, int]:
        """Open the first revision from `rev` on that is free; return it and its number.

        Raises:
            OSError: there is no such file to be had.
        """
        while True:
            path = os.path.join(self.work_dir, with_rev(name, rev))
            is_taken = self.has_work_dir and os.path.lexists(self._goal_of(path))
            file = None if is_taken else self._open(path)
            if file is not None:
                if not self.max_bytes or file.end <= self.max_bytes:
                    return file, rev
                file.close()
            if REV not in name:
                # Only a name without <REV> cannot be had in another revision.
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            rev += 1

    def _open(self, path: str) -> OutputFile | None:
        """Open or make a file; None if it is another one's."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        flags |= os.O_APPEND if self.is_appending else os.O_EXCL
        os.makedirs(os.path.dirname(path), 0o770, exist_ok=True)
        try:
            fd = os.open(path, flags, 0o666)
        except FileExistsError:
            return None
        try:
            # A shared lock: other processes may append too, but none adopts or cuts the file.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not is_named(fd, path):
                os.close(fd)
                return None  # Another process has adopted it before it was locked.
            directories = _directories_up(path, self.work_dir)
            return OutputFile(fd, path, gzip_level=self.gzip_level, directories=directories)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise

    def finish(self, path: str, name: str, rev: int) -> str:
        """Move a file that is closed and synced; return where it is now.

        Args:
            name: its name with <REV> in it, for another revision if that one is taken.

        Raises:
            OSError: it is still in the work directory, or has both names.
        """
        if not self.has_work_dir:
            return path
        goal = self._goal_of(path)
        os.makedirs(os.path.dirname(goal), 0o770, exist_ok=True)
        while not self._move(path, goal):
            if REV not in name:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), goal)
            rev += 1
            goal = os.path.join(self.output_dir, with_rev(name, rev))
        for directory in _directories_up(goal, self.output_dir):
            sync_directory(directory)
        os.unlink(path)
        sync_directory(os.path.dirname(path))
        return goal

    def _goal_of(self, path: str) -> str:
        return os.path.join(self.output_dir, os.path.relpath(path, self.work_dir))

    def _move(self, path: str, goal: str) -> bool:
        """Give a file its new name; False if that is taken by another one."""
        try:
            os.link(path, goal)
        except FileExistsError:
            # A run that was killed between link and unlink leaves one file with both names.
            return os.path.samefile(path, goal)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return _copy(path, goal)
        return True


def remove_parts(directory: str) -> None:
    """Remove copies that were not finished, unless their process lives."""
    for entry in list(os.scandir(directory)):
        if not entry.name.endswith(_PART) or not entry.is_file(follow_symlinks=False):
            continue
        fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)
        finally:
            os.close(fd)


def _copy(path: str, goal: str) -> bool:
    """Copy to another file system; False if the name is taken."""
    try:
        reserved = os.open(goal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    os.close(reserved)
    part = f"{goal}.{os.getpid()}{_PART}"
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    target = -1
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        target = os.open(part, flags, 0o666)
        fcntl.flock(target, fcntl.LOCK_EX)
        while data := os.read(source, _COPY_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
        os.fsync(target)
        os.rename(part, goal)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(goal)
            os.unlink(part)
        raise
    finally:
        os.close(source)
        if target >= 0:
            os.close(target)
    return True


def is_named(fd: int, path: str) -> bool:
    """Say whether a descriptor is of the file that has this name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _directories_up(path: str, top: str) -> list[str]:
    """Return the directories of a path, from that of the file up to `top`.

    All of them are synced with a new file: a run that was killed may have made them and not more.
    """
    directories = [os.path.dirname(path)]
    while len(directories[-1]) > len(top) and directories[-1].startswith(top):
        directories.append(os.path.dirname(directories[-1]))
    return directories
