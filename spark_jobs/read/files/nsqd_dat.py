"""nsqd.dat: the topics and channels that an nsqd knows, also those with nothing on disk.

A directory shows what is on disk. Messages in the memory of a running nsqd are not, and nsqd.dat
alone tells that there are queues which may have some.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from diskqueue.layout import join_queue_name
from spark_jobs.read.files.directory import Directory

_FILE_NAME = "nsqd.dat"
_MAX_BYTES = 256 * 1024 * 1024
_LOCKS = Path("/proc/locks")
_SHOWN_NAMES = 3

QueueName = tuple[str, str | None]  # topic, channel


@dataclass(frozen=True, slots=True)
class KnownQueues:
    """The contents of a directory's nsqd.dat, and whether an nsqd is at work there."""

    directory: str
    names: frozenset[QueueName]
    # On this machine; an nsqd of another machine on a shared disk does not show.
    is_running: bool


def read_known_queues(directory: Directory) -> KnownQueues:
    """Read nsqd.dat; a file that is not there, or is none, knows no queues.

    Raises:
        OSError: it cannot be read.
    """
    text = directory.read_start(_FILE_NAME, _MAX_BYTES)
    return KnownQueues(
        directory.name,
        frozenset() if text is None else frozenset(_parse(text)),
        _is_locked(directory.find_local_path()),
    )


def _parse(text: bytes) -> set[QueueName]:
    try:
        topics = json.loads(text)["topics"] or []
        names: set[QueueName] = set()
        for topic in topics:
            names.add((str(topic["name"]), None))
            names |= {
                (str(topic["name"]), str(channel["name"])) for channel in topic["channels"] or []
            }
    except (ValueError, KeyError, TypeError):
        return set()
    return names


def _is_locked(path: str | None) -> bool:
    """Tell whether a process holds the lock that nsqd takes on its directory.

    Trying to lock it could keep an nsqd from starting at this very moment.
    """
    if path is None or not _LOCKS.exists():
        return False
    status = os.stat(path)
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    place = f"{major:02x}:{minor:02x}:{status.st_ino}"
    return any(
        fields[1] == "FLOCK" and place in fields
        for fields in map(str.split, _LOCKS.read_text().splitlines())
        if len(fields) > 1
    )


def describe_unseen(known: KnownQueues, on_disk: set[QueueName]) -> str | None:
    """Name the known queues that a look at the directory cannot see; None if it sees all.

    Args:
        on_disk: the queues that have files.
    """
    # Messages of a topic with channels are in these.
    topics = {topic for topic, channel in known.names if channel is not None}
    waiting = {name for name in known.names if name[1] is not None or name[0] not in topics}
    absent = sorted(join_queue_name(topic, channel) for topic, channel in waiting - on_disk)
    shown = ", ".join(absent[:_SHOWN_NAMES]) + (", ..." if len(absent) > _SHOWN_NAMES else "")
    figure = f"{len(absent)} of {len(waiting)} queues of its nsqd.dat have nothing on disk"
    listed = f"; {figure} ({shown})" if absent else ""
    if known.is_running:
        return (
            f"an nsqd is running in {known.directory}: its messages in memory, in flight and"
            f" deferred are not seen{listed}. Ask it instead: option nsqd or lookupd"
        )
    if absent:
        return (
            f"{known.directory}: {figure} ({shown}): they are empty, or their messages are in the"
            " memory of an nsqd that runs elsewhere and are not seen"
        )
    return None
