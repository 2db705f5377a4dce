"""Identity files: one random name of 32 hexadecimal digits and a line feed.

A name is told to others only when its file is durable, so that no power cut gives one thing two
names.
"""

import os
import re

from diskqueue import layout

_TEXT = re.compile(rb"([0-9a-f]{32})\n")
_RANDOM_BYTES = 16


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
