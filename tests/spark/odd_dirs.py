"""Functions that fill a directory with files that nsqd, a crash or a person may leave."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

from tests.spark.data_dirs import (
    Message,
    content,
    message,
    messages,
    write_metadata,
    write_queue,
    write_segment,
)

ODD_DIRECTORIES: list[Callable[[Path], None]] = []

_GOOD = content(messages(0, 3))
_BIG = Message(b"b" * (10 << 20))


def _odd(make: Callable[[Path], None]) -> Callable[[Path], None]:
    ODD_DIRECTORIES.append(make)
    return make


@_odd
def odd_names(path: Path) -> None:
    names = [
        *("a%20b", "100%s", "%d:%d", "a.b-c", "-", "_", "a b", "zoë:ü"),
        *("x#ephemeral", "x#ephemeral:c#ephemeral", "x:c#ephemeral"),
        *("..", ".", "...", "..:..", ".hidden"),
        *("a.bad", "a.dat.bad:b.bad", "meta", "meta.dat", "a.tmp"),
        *("a.diskqueue.000001.dat", "a.diskqueue.meta", "a.diskqueue", "a" * 64 + ":" + "b" * 64),
    ]
    for name in names:
        write_queue(path, name, [messages(0, 2), messages(2, 1)], read=(0, 50))


@_odd
def positions(path: Path) -> None:
    texts = [
        *("", "garbage", "\0" * 30, "6\n0,0\n1,150\n\0\0\0", "6\n0,0\n1,150\nmore\n"),
        # The depth does not matter.
        *("-5\n0,50\n1,150\n", "0\n0,50\n1,150\n", "99\n0,50\n1,150\n"),
        # Stale: there is more than the last sync knew of, in the same file or a later one.
        *("6\n0,0\n1,100\n", "6\n0,0\n0,100\n", "0\n0,0\n0,0\n", "2\n0,0\n1,0\n"),
        # Nothing left.
        *("0\n1,150\n1,150\n", "0\n2,0\n2,0\n", "0\n7,0\n7,0\n"),
        # Reading is beyond writing.
        *("6\n1,200\n1,100\n", "6\n2,0\n1,100\n"),
        *("6\n-1,0\n1,100\n", "6\n0,-5\n1,150\n", "6\n0,0\n1,-1\n"),
        *("6\r\n0,0\r\n1,150\r\n", "6\n0,0\n1,150", "6 0,50 1,150"),
        # Within a record, at the end of a file, beyond it.
        *("6\n0,25\n1,150\n", "6\n0,150\n1,150\n", "6\n0,9999\n1,150\n", "6\n0,50\n1,120\n"),
        *("6\n0,0\n5,0\n", "6\n0,0\n1,99999\n", "6\n0,0\n999999999,50\n"),
    ]
    for number, text in enumerate(texts):
        name = f"t{number:02d}"
        write_queue(path, name, [messages(0, 3), messages(3, 3)])
        (path / f"{name}.diskqueue.meta.dat").write_bytes(text.encode())


@_odd
def tails(path: Path) -> None:
    """A good segment with something behind it: alone, as the last one, and before another."""
    endings = [
        *(b"\0" * 100, b"\0", b"\0\0\0\x1a", b"\0" * 5_000_000),
        *(_GOOD[:29], _GOOD[:30], _GOOD[:49], b"\xff" * 50),
        struct.pack(">i", 25) + b"x" * 25,
        struct.pack(">i", 26) + b"x" * 26,
        struct.pack(">i", 1 << 20) + b"x" * 50,
        struct.pack(">i", (1 << 20) + 27) + b"x" * 50,
        struct.pack(">i", 2**31 - 1) + b"x" * 50,
        struct.pack(">i", -(2**31)) + b"x" * 50,
    ]
    for number, ending in enumerate(endings):
        data = _GOOD + ending
        write_segment(path, f"alone{number}", 0, data)
        write_segment(path, f"last{number}", 0, data)
        write_metadata(path, f"last{number}", read=(0, 50), write=(0, len(data)))
        write_segment(path, f"inner{number}", 0, data)
        write_segment(path, f"inner{number}", 1, _GOOD)
        write_metadata(path, f"inner{number}", read=(0, 0), write=(1, len(_GOOD)))


@_odd
def numbers(path: Path) -> None:
    """Large ones, gaps, and files that only look like segments."""
    for number in (5, 999_998, 1_000_000, 1_000_001, 10_000_000):
        write_segment(path, "t", number, content(messages(number, 2)))
    write_metadata(path, "t", read=(999_998, 50), write=(10_000_000, 100))
    write_segment(path, "u", 2**31, _GOOD)
    write_queue(path, "v", [messages(0, 3)])
    for text in ("0000000", "0000001", "00001", "99999999999999999999", "\u0660" * 6, "-00001", ""):
        (path / f"v.diskqueue.{text}.dat").write_bytes(content(messages(9, 1)))
        (path / f"w.diskqueue.{text}.dat.bad").write_bytes(content(messages(9, 1)))


@_odd
def sizes(path: Path) -> None:
    """Empty segments, empty bodies, records above the limit, bodies that are segments."""
    nothing = Message(b"")
    write_queue(path, "empty", [[], [], messages(0, 1), [], messages(1, 1), []])
    write_queue(path, "bare", [[nothing] * 1000, [nothing]], read=(0, 30))
    write_queue(path, "big1", [[_BIG]])
    write_queue(path, "big2", [[message(1), _BIG], [_BIG, message(2)]])
    write_queue(path, "big3", [[message(1), _BIG, _BIG, message(2)]], read=(0, 50))
    inner = Message(content([nothing, *messages(0, 40), Message(content(messages(0, 9)))]))
    write_queue(path, "nested", [[inner] * 50, [*[inner] * 9, *messages(0, 500)]])
    fives = Message(struct.pack(">i", 46) * 50)
    write_queue(path, "prefixes", [[fives] * 3000])


@_odd
def other_files(path: Path) -> None:
    """Files beside the segments, of nsqd and of others."""
    write_queue(path, "t", [messages(0, 3)])
    write_queue(path / "sub", "t", [messages(9, 3)])
    write_queue(path / "archive", "t", [messages(9, 3)])
    (path / "nsqd.dat").write_text("{}")
    (path / "t.diskqueue.meta.dat.123.tmp").write_text("1\n9,9\n9,9\n")
    for ending in ("due", "due.5.tmp", "other", "000000.dat.bak", "000000.dat.gz"):
        (path / f"t.diskqueue.{ending}").write_bytes(b"junk")
        (path / f"only.diskqueue.{ending}").write_bytes(b"junk")
    (path / "dir.diskqueue.000000.dat").mkdir()
    (path / "dir.diskqueue.meta.dat").mkdir()
    (path / "t.diskqueue.000000.dat.bad").mkdir()
    os.mkfifo(path / "fifo.diskqueue.000000.dat")
    (path / "t.diskqueue.000007.dat").symlink_to(path / "nothing")
    (path / "gone.diskqueue.meta.dat").symlink_to(path / "nothing")
    write_queue(path / "elsewhere", "linked", [messages(0, 2)])
    for name in ("linked.diskqueue.000000.dat", "linked.diskqueue.meta.dat"):
        (path / name).symlink_to(path / "elsewhere" / name)
