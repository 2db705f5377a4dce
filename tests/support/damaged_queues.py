"""Queues on disk, whole or damaged, written by hand: what a start of nsqd may find.

`CASES` are damages to one queue of `BODIES`, by name; each says what must still be delivered.
"""

import json
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from diskqueue import envelope

NOW_NS = 1_790_000_000 * 10**9
BODIES = [b"%02d " % number + b"body" * (number % 7) for number in range(12)]
# The segments of a queue: bodies 0-4, 5-8, 9-11.
_CUTS = (0, 5, 9, 12)


def record(number: int) -> bytes:
    """The record of body `number`."""
    message_id = b"%016x" % (0x189C9E7352E69000 + number)
    payload = envelope.encode(NOW_NS + number, 0, message_id, BODIES[number])
    return struct.pack(">i", len(payload)) + payload


class QueueFiles:
    """The files of one queue, written whole and then spoiled."""

    def __init__(self, directory: Path, name: str) -> None:
        self._prefix = directory / f"{name}.diskqueue."
        for segment, (first, last) in enumerate(pairwise(_CUTS)):
            self.segment(segment).write_bytes(b"".join(map(record, range(first, last))))
        self.metadata.write_text(f"{len(BODIES)}\n0,0\n2,{self.segment(2).stat().st_size}\n")

    def segment(self, number: int) -> Path:
        """The path of a segment."""
        return self._prefix.with_name(f"{self._prefix.name}{number:06d}.dat")

    @property
    def metadata(self) -> Path:
        """The path of the metadata."""
        return self._prefix.with_name(f"{self._prefix.name}meta.dat")

    @property
    def finished(self) -> Path:
        """The path of the list of finished records."""
        return self._prefix.with_name(f"{self._prefix.name}finished")

    @property
    def due(self) -> Path:
        """The path of the list of due times."""
        return self._prefix.with_name(f"{self._prefix.name}due")

    def offset(self, number: int) -> tuple[Path, int]:
        """The segment of a record, and where in it the record starts."""
        segment = max(index for index, cut in enumerate(_CUTS[:-1]) if cut <= number)
        sizes = [len(record(each)) for each in range(_CUTS[segment], number)]
        return self.segment(segment), sum(sizes)

    def overwrite(self, number: int, data: bytes, at: int = 0) -> None:
        """Write other bytes over a record, from its byte `at` on."""
        path, position = self.offset(number)
        content = bytearray(path.read_bytes())
        content[position + at : position + at + len(data)] = data
        path.write_bytes(content)

    def flip_length(self, number: int, bit: int) -> None:
        """Flip a bit in the length of a record."""
        (length,) = struct.unpack_from(">i", record(number))
        self.overwrite(number, struct.pack(">i", length ^ 1 << bit))

    def flip_lengths(self, bit: int, *numbers: int) -> None:
        """Flip a bit in the lengths of several records."""
        for number in numbers:
            self.flip_length(number, bit)

    def cut(self, number: int, at: int) -> None:
        """End the segment of a record after `at` bytes of the record."""
        path, position = self.offset(number)
        os.truncate(path, position + at)


@dataclass(frozen=True)
class Damage:
    """What is done to a queue, and the numbers of the bodies that must be delivered after it."""

    spoil: Callable[[QueueFiles], object]
    delivered: Sequence[int] = range(12)
    # Part of the log line that tells.
    told: str = ""


def _without(*lost: int) -> list[int]:
    return [number for number in range(12) if number not in lost]


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _zero_from(files: QueueFiles, number: int) -> None:
    path, position = files.offset(number)
    size = path.stat().st_size
    os.truncate(path, position)
    os.truncate(path, size)


def _set_metadata(text: str | bytes) -> Callable[[QueueFiles], object]:
    content = text.encode() if isinstance(text, str) else text
    return lambda files: files.metadata.write_bytes(content)


def _link_elsewhere(files: QueueFiles) -> None:
    path = files.segment(1)
    target = path.with_name(f"elsewhere-{path.name}")
    path.rename(target)
    path.symlink_to(target)


SALVAGE = "salvage=python -m diskqueue salvage"
# Behind READ in segment 0 stand three records.
_STALE = f"12\n0,{list(accumulate(len(record(n)) for n in range(2)))[-1]}\n0,200\n"

CASES: dict[str, Damage] = {
    "whole": Damage(lambda files: None),
    "length_grown": Damage(lambda files: files.flip_length(2, 6), _without(2), SALVAGE),
    "length_shrunk": Damage(lambda files: files.flip_length(6, 4), _without(6), SALVAGE),
    "length_zero": Damage(lambda files: files.overwrite(3, bytes(4)), _without(3), SALVAGE),
    "length_negative": Damage(lambda files: files.overwrite(0, b"\xff"), _without(0), SALVAGE),
    "length_huge": Damage(lambda files: files.overwrite(10, b"\x7f"), _without(10), SALVAGE),
    "length_of_the_last": Damage(lambda files: files.flip_length(11, 9), _without(11), SALVAGE),
    "header_noise": Damage(
        lambda files: files.overwrite(7, b"\xa5\x5a" * 15), _without(7), SALVAGE
    ),
    "several": Damage(
        lambda files: files.flip_lengths(7, 1, 3, 7, 10),
        _without(1, 3, 7, 10),
        SALVAGE,
    ),
    "torn_tail": Damage(lambda files: files.cut(11, 17), _without(11)),
    "torn_in_the_middle": Damage(lambda files: files.cut(7, 17), _without(7, 8), SALVAGE),
    "emptied_segment": Damage(lambda files: files.cut(5, 0), _without(5, 6, 7, 8)),
    "zeroed_tail": Damage(lambda files: _zero_from(files, 10), _without(10, 11), SALVAGE),
    "zeroed_middle": Damage(
        lambda files: files.overwrite(1, bytes(len(record(1)) + 20)), _without(1, 2), SALVAGE
    ),
    "noise": Damage(
        lambda files: files.segment(1).write_bytes(bytes(range(256)) * 9),
        _without(5, 6, 7, 8),
        SALVAGE,
    ),
    "no_first_segment": Damage(lambda files: files.segment(0).unlink(), range(5, 12), "missing"),
    "no_middle_segment": Damage(
        lambda files: files.segment(1).unlink(), _without(5, 6, 7, 8), "missing"
    ),
    "no_last_segment": Damage(lambda files: files.segment(2).unlink(), range(9), "missing"),
    "directory_for_a_segment": Damage(
        lambda files: _replace(files.segment(1), Path.mkdir), _without(5, 6, 7, 8), "missing"
    ),
    "directory_for_the_last_segment": Damage(
        lambda files: _replace(files.segment(2), Path.mkdir), range(9), "missing"
    ),
    "fifo_for_a_segment": Damage(
        lambda files: _replace(files.segment(1), os.mkfifo), _without(5, 6, 7, 8), "missing"
    ),
    "fifo_for_the_last_segment": Damage(
        lambda files: _replace(files.segment(2), os.mkfifo), range(9), "missing"
    ),
    "link_to_nowhere": Damage(
        lambda files: _replace(files.segment(1), lambda path: path.symlink_to("nowhere")),
        _without(5, 6, 7, 8),
        "missing",
    ),
    "link_to_itself": Damage(
        lambda files: _replace(files.segment(1), lambda path: path.symlink_to(path.name)),
        _without(5, 6, 7, 8),
        "missing",
    ),
    "link_elsewhere": Damage(_link_elsewhere),
    "no_metadata": Damage(lambda files: files.metadata.unlink(), told="without metadata"),
    "empty_metadata": Damage(_set_metadata(""), told="metadata unusable"),
    "metadata_noise": Damage(_set_metadata(bytes(range(256))), told="metadata unusable"),
    "metadata_of_text": Damage(_set_metadata("many\n0,0\n2,9\n"), told="metadata unusable"),
    "metadata_read_beyond_write": Damage(_set_metadata("1\n7,0\n2,9\n"), told="metadata unusable"),
    "metadata_absurd": Damage(_set_metadata(f"1\n{10**18},0\n{10**18},9\n"), [], "missing"),
    "metadata_stale": Damage(_set_metadata(_STALE), range(2, 12), "older than the segments"),
    "metadata_in_a_record": Damage(_set_metadata("12\n0,50\n2,118\n"), range(2, 12), SALVAGE),
    "noise_for_sidecars": Damage(
        lambda files: [
            path.write_bytes(bytes(range(256)) * 3) for path in (files.finished, files.due)
        ],
    ),
    "fifos_for_sidecars": Damage(lambda files: list(map(os.mkfifo, (files.finished, files.due)))),
    "fifo_for_metadata": Damage(
        lambda files: _replace(files.metadata, os.mkfifo), told="metadata unusable"
    ),
    "directory_for_metadata": Damage(
        lambda files: _replace(files.metadata, Path.mkdir), told="metadata unusable"
    ),
    "link_to_itself_for_metadata": Damage(
        lambda files: _replace(files.metadata, lambda path: path.symlink_to(path.name)),
        told="metadata unusable",
    ),
}


def write_nsqd_dat(directory: Path, topics: Sequence[str], channel: str) -> None:
    """Name these topics, each with the channel."""
    content = {
        "topics": [
            {"name": topic, "paused": False, "channels": [{"name": channel, "paused": False}]}
            for topic in topics
        ],
        "version": "1.3.0",
    }
    (directory / "nsqd.dat").write_text(json.dumps(content))
