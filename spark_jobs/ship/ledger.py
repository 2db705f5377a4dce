"""Ledger: the segments of one topic that have arrived, as a file beside them.

The file `TOPIC.shipped.json` is replaced whole after segments are there whole, and before the
metadata that readers go by. So a pass that was killed leaves at most segments that nobody knows,
which the next pass writes again, byte by byte the same.

A topic that was deleted and made anew begins with segment 0 again. Its segments follow those that
have arrived: `base` is added to their numbers, so the history of a name is one queue.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from diskqueue import layout

_ENDING = ".shipped.json"
_VERSION = 1


class LedgerError(ValueError):
    """Raised when a ledger cannot be used."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """One segment that has arrived."""

    number: int
    # Of the node: the generation of the queue, and the number there.
    generation: str
    source_number: int
    byte_count: int
    sha256: str
    message_count: int
    first_ns: int | None
    last_ns: int | None
    # Of its checksum file; none for a segment that has no such file.
    checksum_bytes: int = 0
    checksum_sha256: str = ""


@dataclass(slots=True)
class Ledger:
    """The arrived segments of one topic, oldest first."""

    topic: str
    segments: list[Shipped] = field(default_factory=list)
    # The next number; stays when old segments are removed from the store.
    next_number: int = 0
    # Of the queue that is being shipped: its generation, and the offset added to its numbers.
    generation: str | None = None
    base: int = 0

    def adopt(self, generation: str, first_number: int) -> None:
        """Go on with a queue; one with another generation follows the segments there."""
        if generation == self.generation:
            return
        if self.generation is None:
            self.next_number = first_number
        self.base = self.next_number - first_number
        self.generation = generation

    def add(self, shipped: Shipped) -> None:
        """Note a segment that has arrived."""
        assert shipped.number >= self.next_number
        self.segments.append(shipped)
        self.next_number = shipped.number + 1

    def forget_removed(self, sizes: dict[str, int]) -> int:
        """Forget the oldest segments if they were removed; return how many.

        Args:
            sizes: the files that are there. Others that are missing stay in the books: they are
                damage, and readers are told.
        """
        there = (n for n, each in enumerate(self.segments) if self.file_name(each.number) in sizes)
        count = next(there, len(self.segments))
        del self.segments[:count]
        return count

    def find_wrong(self, sizes: dict[str, int]) -> list[str]:
        """Return the files that are missing or have another size than the copied one."""
        return [name for name, size, _ in self.files() if sizes.get(name) != size]

    def files(self) -> Iterator[tuple[str, int, str]]:
        """Give the name, size and SHA-256 of each file: segments, and their checksum files."""
        for each in self.segments:
            name = self.file_name(each.number)
            yield name, each.byte_count, each.sha256
            if each.checksum_sha256:
                yield layout.checksum_path(name), each.checksum_bytes, each.checksum_sha256

    def file_name(self, number: int) -> str:
        """Return the name of a segment where it has arrived."""
        return layout.segment_path("", self.topic, number).lstrip("/")

    def metadata(self) -> layout.Metadata:
        """Return the positions between which readers read."""
        first = self.segments[0].number if self.segments else self.next_number
        depth = sum(each.message_count for each in self.segments)
        return layout.Metadata(depth, first, 0, self.next_number, 0)

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=0).encode()


def ledger_name(topic: str) -> str:
    """Return the name of a topic's ledger."""
    return f"{topic}{_ENDING}"


def topic_of_ledger(file_name: str) -> str | None:
    """Return the topic of a ledger; None for other files."""
    return file_name.removesuffix(_ENDING) if file_name.endswith(_ENDING) else None


def parse_ledger(topic: str, text: bytes) -> Ledger:
    """Parse the content of a ledger.

    Raises:
        LedgerError: it is none, or of a later version.
    """
    try:
        document = json.loads(text)
        if document.pop("version") != _VERSION or document["topic"] != topic:
            raise LedgerError(f"{ledger_name(topic)} is of another version, or topic")
        segments = [Shipped(**each) for each in document.pop("segments")]
        return Ledger(segments=segments, **document)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(f"{ledger_name(topic)} cannot be used: {error}") from error
