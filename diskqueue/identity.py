"""Identity: random names that tell things apart, each in a file of its own.

The file holds 32 hexadecimal digits and a line feed. A name is told to others only when its file is
durable, so that no power cut gives one thing two names. nsqd's data path has one for the node.

A `Generation` is the name of a queue. A position in a queue means something only within one
generation: a topic that is deleted and made anew may begin with segment 0 again. Its file,
`NAME.diskqueue.generation`, is written at the first sync of a queue that has records, or when the
name is asked for, also for a queue that go-diskqueue has made; it is removed with the queue.

    9ad03f5c71be0d2a9ad03f5c71be0d2a
    12,104857600                        number and size of the newest segment that was deleted

The second line is there once a segment was deleted. By it a reader that stands at the end of that
segment knows that it has read all of it, and one that stands before its end, that it has not.
"""

import os
import re
import threading
from typing import NamedTuple

from diskqueue import layout

_TEXT = re.compile(rb"([0-9a-f]{32})\n")
_RANDOM_BYTES = 16
MAX_FILE_BYTES = 128
_GENERATION = re.compile(rb"([0-9a-f]{32})(?:\n(?:([0-9]{1,19}),([0-9]{1,19})\n)?)?")


def read_identity(path: str | os.PathLike[str]) -> str | None:
    """Return the name in a file; None if there is no such file, or another text in it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(64)
    except (FileNotFoundError, IsADirectoryError):
        return None
    return parse_identity(text)


def parse_identity(text: bytes) -> str | None:
    """Return the name that is the text of a file, None if it is another text."""
    match = _TEXT.fullmatch(text)
    return None if match is None else match[1].decode("ascii")


def make_identity() -> str:
    """Return a new name, which no file has yet."""
    return os.urandom(_RANDOM_BYTES).hex()


def write_identity(path: str | os.PathLike[str], name: str) -> None:
    """Put a name into its file, durably.

    Raises:
        OSError: the old file is still there, or the new one may not be durable.
    """
    layout.write_atomically(path, f"{name}\n".encode("ascii"))


class Deleted(NamedTuple):
    """A segment that is gone, and where it ended."""

    number: int
    size_bytes: int


class Generation:
    """The generation of one queue; the file is looked at when it is first needed."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = layout.generation_path(directory, name)
        self._value: str | None = None
        # The newest segment that the owner of the queue has given up, and the one in the file.
        self._retired: Deleted | None = None
        self._stored: Deleted | None = None
        # Raised by `end`: a name from before is not believed any more, nor a file that has it.
        self._number = 0
        self._is_file_believed = True
        # Held by the one thread that reads and writes the file.
        self._lock = threading.Lock()

    @property
    def stored(self) -> str | None:
        """The name, if it is known and durable in its file."""
        return self._value

    @property
    def last_deleted(self) -> Deleted | None:
        """The newest segment that was deleted, or will be at once; None if there is none."""
        return _newer(self._retired, self._stored)

    def ensure(self) -> str:
        """Return the name, from its file, or a new one that is in its file by then; block.

        Raises:
            OSError: the file cannot be read or written.
        """
        with self._lock:
            # Ends: the number is raised only when the queue is removed.
            while (value := self._value) is None:
                number = self._number
                if self._load() is None and self._number == number:
                    self._write(make_identity(), self._retired, number)
            return value

    def note_retired(self, number: int, size_bytes: int) -> None:
        """Note that a segment will be deleted; by the owner of the queue, who never waits."""
        self._retired = _newer(self._retired, Deleted(number, size_bytes))

    def store_deleted(self, number: int, size_bytes: int) -> None:
        """Write into the file that a segment is about to be deleted; block.

        A queue without a file has told nobody its name, and so nobody has a position in it.

        Raises:
            OSError: the file cannot be read or written.
        """
        deleted = Deleted(number, size_bytes)
        with self._lock:
            generation_number = self._number
            name = self._value or self._load()
            if name is not None and _newer(self._stored, deleted) != self._stored:
                self._write(name, deleted, generation_number)

    def end(self) -> None:
        """Have another name from now on: the queue is being removed, or made anew; never wait."""
        self._number += 1
        self._value = None
        self._retired = self._stored = None
        self._is_file_believed = False

    def _load(self) -> str | None:
        """Read the file; return the name in it, None if it has none that is believed."""
        number = self._number
        found = _read(self._path) if self._is_file_believed else None
        if found is None or self._number != number:
            return None
        self._value, self._stored = found
        return self._value

    def _write(self, name: str, deleted: Deleted | None, number: int) -> None:
        line = "" if deleted is None else f"{deleted.number},{deleted.size_bytes}\n"
        layout.write_atomically(self._path, f"{name}\n{line}".encode("ascii"))
        if self._number == number:
            self._value, self._stored = name, deleted
            self._is_file_believed = True


def parse_generation(text: bytes) -> tuple[str, Deleted | None] | None:
    """Return the name and the deleted segment that are the text of a file; None of another text."""
    match = _GENERATION.fullmatch(text)
    if match is None:
        return None
    deleted = None if match[2] is None else Deleted(int(match[2]), int(match[3]))
    return match[1].decode("ascii"), deleted


def _read(path: str) -> tuple[str, Deleted | None] | None:
    try:
        with open(path, "rb") as file:
            return parse_generation(file.read(MAX_FILE_BYTES))
    except (FileNotFoundError, IsADirectoryError):
        return None


def _newer(one: Deleted | None, other: Deleted | None) -> Deleted | None:
    if one is None or other is None:
        return one or other
    return max(one, other)
