"""nsqd.dat: which topics and channels exist, and which are paused, read and written."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from diskqueue.layout import write_atomically

FILE_NAME = "nsqd.dat"


class MetadataError(Exception):
    """nsqd.dat is there but can't be used; the text says why."""


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """What nsqd.dat holds of a channel."""

    name: str
    is_paused: bool


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What nsqd.dat holds of a topic."""

    name: str
    is_paused: bool
    channels: tuple[ChannelRecord, ...]


def encode(topics: Iterable[TopicRecord], version: str) -> bytes:
    """Return the text of nsqd.dat, in the Go daemon's shape: compact, null for an empty list."""
    content = {
        "topics": [
            {
                "name": topic.name,
                "paused": topic.is_paused,
                "channels": [
                    {"name": channel.name, "paused": channel.is_paused}
                    for channel in topic.channels
                ]
                or None,
            }
            for topic in topics
        ]
        or None,
        "version": version,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode(text: bytes) -> list[TopicRecord]:
    """Read the text of nsqd.dat: null, [] and an absent list are the same.

    Raises:
        ValueError: it is not of that shape.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return [
        TopicRecord(
            name=_text(topic, "name"),
            is_paused=_boolean(topic, "paused"),
            channels=tuple(
                ChannelRecord(_text(channel, "name"), _boolean(channel, "paused"))
                for channel in _objects(topic, "channels")
            ),
        )
        for topic in _objects({} if content is None else content, "topics")
    ]


def load(data_path: Path) -> list[TopicRecord]:
    """Read nsqd.dat; a missing file is a fresh start.

    Raises:
        MetadataError: it can't be read or understood.
    """
    path = data_path / FILE_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MetadataError(f"failed to read metadata from {path} - {error}") from error
    try:
        return decode(text)
    except ValueError as error:
        raise MetadataError(f"failed to parse metadata in {path} - {error}") from error


def save(data_path: Path, text: bytes) -> None:
    """Replace nsqd.dat whole and make it durable; blocks.

    Raises:
        OSError: the old file is still there.
    """
    write_atomically(data_path / FILE_NAME, text)


def _objects(parent: object, key: str) -> list[object]:
    if not isinstance(parent, dict):
        raise ValueError(f"expected an object with {key!r}, got {type(parent).__name__}")
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key!r} is not a list")
    return value


def _text(parent: object, key: str) -> str:
    if not isinstance(parent, dict):
        raise ValueError(f"expected an object with {key!r}, got {type(parent).__name__}")
    value = parent.get(key)
    if value is None:
        return ""  # as in Go: an invalid name, which is skipped and does not stop the start
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is not a string")
    return value


def _boolean(parent: object, key: str) -> bool:
    value = parent.get(key) if isinstance(parent, dict) else None
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key!r} is not true or false")
    return bool(value)
