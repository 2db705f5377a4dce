"""Offsets of a stream, as Spark stores them in a checkpoint.

    {"version": 2,
     "end":   {"3f5c...": {"orders":         {"at": "3:1048576", "id": "g:9ad0..."},
                           "orders:billing": {"at": "0:512",     "id": "g:71be..."}}},
     "begin": {"3f5c...": {"orders:billing": "0:0"}}}

`end` is where a batch ends in every queue that the query has ever seen, by the id of its node and
the name of the queue: segment:offset, and the identity of the queue (`files/identity.py`). `begin`
is there for queues that are new in the batch, and says where reading of them starts. A path never
stands in an offset, except for directories of an nsqd that has no id.

Version 1 had paths for nodes and no identities: {"end": {"/var/lib/nsqd": {"orders": "3:100"}}}.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_jobs.read.files.identity import UNKNOWN, node_of_path, with_plain_path
from spark_jobs.read.queue import Queue

VERSION = 2

QueueKey = tuple[str, str]  # node, name of the queue


class Position(NamedTuple):
    """A place in a queue, between two records."""

    segment: int
    offset: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Parse `segment:offset`.

        Raises:
            ValueError: the text is something else.
        """
        segment, offset = text.split(":")
        return cls(int(segment), int(offset))


class Mark(NamedTuple):
    """A place in a queue, and which queue that is."""

    position: Position
    identity: str = UNKNOWN


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a micro-batch in every queue, and the begin of queues that are new in it."""

    end: Mapping[QueueKey, Mark]
    begin: Mapping[QueueKey, Position]

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        marks = {
            key: {"at": str(mark.position), "id": mark.identity} for key, mark in self.end.items()
        }
        starts = {key: str(position) for key, position in self.begin.items()}
        return {"version": VERSION, "end": _nest(marks), "begin": _nest(starts)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Parse an offset that Spark stored, of this version or of the first.

        Raises:
            ValueError: the document is no offset of this format, or a later version wrote it.
        """
        version = document.get("version", 1)
        if version not in (1, VERSION):
            raise ValueError(
                f"the checkpoint has offsets of version {version}, this nsqd-spark reads up to"
                f" {VERSION}: use the newer nsqd that wrote it"
            )
        try:
            if version == 1:
                return _parse_first_version(document)
            marks = {
                key: Mark(Position.parse(entry["at"]), entry["id"])
                for key, entry in _flatten(document["end"]).items()
            }
            return cls(marks, _positions(document["begin"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not an offset of format nsq: {document!r}") from error

    def positions(self) -> dict[QueueKey, Position]:
        """Return the ends without the identities."""
        return {key: mark.position for key, mark in self.end.items()}

    def renamed(self, names: Mapping[QueueKey, QueueKey]) -> "StreamOffset":
        """Return the same with other keys for some queues."""
        if not names:
            return self
        return StreamOffset(
            {names.get(key, key): mark for key, mark in self.end.items()},
            {names.get(key, key): position for key, position in self.begin.items()},
        )


def _parse_first_version(document: Mapping[str, Any]) -> StreamOffset:
    ends = {
        (node_of_path(path), name): Mark(position)
        for (path, name), position in _positions(document["end"]).items()
    }
    begins = {
        (node_of_path(path), name): position
        for (path, name), position in _positions(document["begin"]).items()
    }
    return StreamOffset(ends, begins)


def _positions(nested: Mapping[str, Mapping[str, str]]) -> dict[QueueKey, Position]:
    return {key: Position.parse(text) for key, text in _flatten(nested).items()}


def _nest(entries: Mapping[QueueKey, Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (node, name), entry in sorted(entries.items()):
        nested.setdefault(node, {})[name] = entry
    return nested


def _flatten(nested: Mapping[str, Mapping[str, Any]]) -> dict[QueueKey, Any]:
    return {
        (with_plain_path(node), name): entry
        for node, queues in nested.items()
        for name, entry in queues.items()
    }


def key_of(queue: Queue) -> QueueKey:
    """Return the key of a queue in offsets."""
    return queue.node_id or node_of_path(queue.directory), queue.name
