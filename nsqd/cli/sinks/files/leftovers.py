"""Leftovers: files in the work directory of a run that was killed, adopted at the start.

A file that nobody has locked is cut to its last whole record, synced, and moved. What is cut off
was not certain, so its messages were not finished and come again.
"""

from __future__ import annotations

import fcntl
import os
import re
import zlib
from collections.abc import Iterator
from typing import Final

from nsqd.cli.sinks.files.folders import Folders, is_named, remove_parts
from nsqd.cli.sinks.files.names import REV

_CHUNK_BYTES: Final = 1 << 18
_MAX_OUTPUT_BYTES: Final = 1 << 20
_GZIP_WINDOW: Final = 31


def adopt(folders: Folders, pattern: re.Pattern[str]) -> list[str]:
    """Move the leftovers of a topic to the output directory; return where they are.

    Args:
        pattern: matches their names, relative to the work directory.

    Raises:
        OSError: one cannot be moved.
    """
    if not folders.has_work_dir:
        return []
    remove_parts(folders.output_dir)
    moved = []
    for relative in sorted(_walk(folders.work_dir)):
        match = pattern.fullmatch(relative)
        if match is not None:
            goal = _adopt_one(folders, relative, match)
            if goal is not None:
                moved.append(goal)
    return moved


def _adopt_one(folders: Folders, relative: str, match: re.Match[str]) -> str | None:
    path = os.path.join(folders.work_dir, relative)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_named(fd, path):
            return None  # Another process has adopted it.
        end = find_gzip_end(fd) if folders.gzip_level is not None else find_line_end(fd)
        if not end:
            os.unlink(path)
            return None
        if end < os.fstat(fd).st_size:
            os.ftruncate(fd, end)
        os.fsync(fd)
        # The revision is the only part of the name that may have to change.
        name = relative
        for number in range(len(match.groups()), 0, -1):
            name = name[: match.start(number) - 1] + REV + name[match.end(number) :]
        return folders.finish(path, name, int(match[1]))
    except BlockingIOError:
        return None  # A process that lives writes to it.
    finally:
        os.close(fd)


def find_line_end(fd: int) -> int:
    """Return where the last whole line of a file ends."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - _CHUNK_BYTES)
        position = os.pread(fd, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0


def find_gzip_end(fd: int) -> int:
    """Return where the last whole gzip member of a file ends."""
    whole = position = 0
    member = zlib.decompressobj(_GZIP_WINDOW)
    try:
        while data := os.pread(fd, _CHUNK_BYTES, position):
            position += len(data)
            while data:
                # Bounded: a member that grows a thousandfold is read in parts.
                member.decompress(data, _MAX_OUTPUT_BYTES)
                data = member.unconsumed_tail
                if member.eof:
                    data = member.unused_data
                    whole = position - len(data)
                    member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof and member.decompress(b"", _MAX_OUTPUT_BYTES):
            pass  # The last member ends beyond the bytes that are there.
        whole = position if member.eof else whole
    except zlib.error:
        pass  # The bytes after the last whole member are not one.
    return whole


def _walk(directory: str, prefix: str = "") -> Iterator[str]:
    for entry in os.scandir(os.path.join(directory, prefix)):
        relative = os.path.join(prefix, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(directory, relative)
        elif entry.is_file(follow_symlinks=False):
            yield relative
