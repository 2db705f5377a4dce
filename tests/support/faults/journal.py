"""The journal: everything the daemon did to its data directory and told its clients, in order.

Written by the process under test, outside its data directory, with one write per record, so that a
SIGKILL loses nothing of it; read by whoever wants to know what a power cut could have left. The
position of a record is its offset in the file: clients take the size of the file for the time.

    | 4: length | marshalled tuple: (name, seconds, values...) |

    initial    path, inode, content     what was there before; a directory if the inode is 0
    create     path, inode              write      inode, offset, data
    truncate   inode, size              rename     path, path
    unlink     path                     mkdir      path          rmdir      path
    link       path, path
    fsync      token, inode or path of a directory                synced     token
    failed     inode                    an fsync that failed: what it was to cover is lost
    send       port, bytes that the client of that port has been sent with this
"""

import marshal
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened."""

    position: int
    name: str
    time_s: float
    values: tuple[Any, ...]


class JournalWriter:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        # The functions of `os` are replaced later on.
        self._write: Callable[[int, bytes], int] = os.write

    def add(self, name: str, *values: str | int | bytes) -> None:
        """Add a record."""
        data = marshal.dumps((name, time.monotonic(), *values))
        self._write(self._fd, _LENGTH.pack(len(data)) + data)


def read_journal(path: Path) -> Iterator[Record]:
    """All whole records of a journal."""
    data = path.read_bytes()
    position = 0
    while position + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        start = position + _LENGTH.size
        if start + length > len(data):
            return
        name, time_s, *values = marshal.loads(data[start : start + length])
        yield Record(position, name, time_s, tuple(values))
        position = start + length
