"""nsqd.dat: which topics and channels exist, which are paused, and which limits they have.

It is written soon after a topic or channel has come, not before its first message is acknowledged.
So after a crash, or if the file was lost, there may be queues with messages that do not stand in
it: they are found by their files.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diskqueue.layout import QueueFiles, find_size, split_queue_name, write_atomically
from nsqd.broker.limits.overrides import NO_OVERRIDES, LimitOverrides
from nsqd.protocol.names import is_ephemeral, is_valid_channel_name, is_valid_topic_name

logger = logging.getLogger(__name__)

FILE_NAME = "nsqd.dat"


class MetadataError(Exception):
    """nsqd.dat is there but can't be used; the text says why."""


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """A channel in nsqd.dat."""

    name: str
    is_paused: bool


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic in nsqd.dat."""

    name: str
    is_paused: bool
    channels: tuple[ChannelRecord, ...]
    limits: LimitOverrides = NO_OVERRIDES


def encode(topics: Iterable[TopicRecord], version: str) -> bytes:
    """Return the text of nsqd.dat, in the Go daemon's shape: compact, null for an empty list."""
    return join([encode_topic(topic) for topic in topics], version)


def join(encoded_topics: Sequence[bytes], version: str) -> bytes:
    """Return the text of nsqd.dat, made of the texts of its topics."""
    topics = b"[%s]" % b",".join(encoded_topics) if encoded_topics else b"null"
    return b'{"topics":%s,"version":%s}' % (topics, json.dumps(version).encode())


def encode_topic(topic: TopicRecord) -> bytes:
    """Return the part of nsqd.dat that is about one topic."""
    members: dict[str, object] = {
        "name": topic.name,
        "paused": topic.is_paused,
        "channels": [
            {"name": channel.name, "paused": channel.is_paused} for channel in topic.channels
        ]
        or None,
    }
    limits = topic.limits.to_json()
    if limits:
        members["limits"] = limits  # the Go daemon ignores it
    return json.dumps(members, separators=(",", ":")).encode()


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
            limits=LimitOverrides.from_json(
                topic.get("limits") if isinstance(topic, dict) else None
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
        if find_size(os.fspath(path)) is None and os.path.lexists(path):
            # To open a pipe would wait for ever, and to read a device would not end.
            raise OSError("not a file; move it away")
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MetadataError(f"failed to read metadata from {path} - {error}") from error
    try:
        return decode(text)
    except ValueError as error:
        raise MetadataError(f"failed to parse metadata in {path} - {error}") from error


def add_found(topics: Iterable[TopicRecord], queues: Mapping[str, QueueFiles]) -> list[TopicRecord]:
    """Return the topics and channels of nsqd.dat, and those that only their files tell of.

    Args:
        queues: the queues of the data path, as `list_queues` gives them.
    """
    records = list(topics)
    paused = {topic.name: topic.is_paused for topic in records}
    known = {(topic.name, channel.name) for topic in records for channel in topic.channels}
    for name, files in queues.items():
        topic_name, channel_name = split_queue_name(name)
        has_content = files.has_metadata or any(files.segments.values())
        if not has_content or not _is_kept(topic_name, channel_name):
            continue
        if channel_name is None:
            is_known = topic_name in paused
            channels: tuple[ChannelRecord, ...] = ()
        else:
            is_known = (topic_name, channel_name) in known
            channels = (ChannelRecord(channel_name, is_paused=False),)
        if not is_known:
            logger.warning("found files of a queue that %s does not know: %s", FILE_NAME, name)
            records.append(TopicRecord(topic_name, paused.setdefault(topic_name, False), channels))
    return records


def _is_kept(topic_name: str, channel_name: str | None) -> bool:
    """Return whether such a queue is loaded: ephemeral topics and channels end with the process."""
    if not is_valid_topic_name(topic_name) or is_ephemeral(topic_name):
        return False
    if channel_name is None:
        return True
    return is_valid_channel_name(channel_name) and not is_ephemeral(channel_name)


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
