"""Which nsqd a directory belongs to, and whether a queue is still the one it was.

A topic that is deleted and made anew has the same name, and soon the same positions. So a stream
keeps an identity with every position, one or both of these with a space between them:

    g:<generation>        the random generation that nsqd gave the queue when it made it
    f:<segment>:<hash>    a fingerprint of the first record of a segment, which never changes while
                          it is there. The original nsqd gives no generations, and leaves those of
                          ours behind when it deletes a topic

Nodes are told apart by the id that nsqd keeps in its directory, or, without one, by the real path:
two spellings of a path are one node.
"""

import hashlib
import os
from urllib.parse import unquote

from diskqueue.segment import PREFIX, PREFIX_BYTES
from spark_jobs.read.files.catalog import read_generation
from spark_jobs.read.files.directory import Directory
from spark_jobs.read.queue import Queue

UNKNOWN = ""
_GENERATION = "g:"
_FINGERPRINT = "f:"
_PATH = "path:"
_FILE_URI = "file://"
# Enough for the header of a message, with its time and id, and the start of its body.
_FINGERPRINT_BYTES = 256
_HASH_BYTES = 8


def node_of_path(path: str) -> str:
    """Return the node of a directory that has no id: its real path."""
    if path.startswith(_FILE_URI):
        path = unquote(path.removeprefix(_FILE_URI))
    return _PATH + (path.rstrip("/") if "://" in path else os.path.realpath(path))


def with_plain_path(node: str) -> str:
    """Return a node as it is written now: a checkpoint may have a URI of a local directory."""
    path = node.removeprefix(_PATH)
    return node_of_path(path) if is_path(node) and path.startswith(_FILE_URI) else node


def is_path(node: str) -> bool:
    """Tell whether a node is known by its path only."""
    return node.startswith(_PATH)


def find_identity(queue: Queue, segment: int, offset: int) -> str:
    """Return the identity of a queue at a position; UNKNOWN if nothing tells it.

    Raises:
        OSError: a file cannot be read.
    """
    parts = [] if queue.generation is None else [_GENERATION + queue.generation]
    numbers = [number for number in queue.sizes if (number, 0) < (segment, offset)]
    if numbers and not queue.is_remote:
        parts.append(_find_fingerprint(queue, max(numbers)) or "")
    return " ".join(filter(None, parts))


def find_same(queue: Queue, identity: str) -> bool | None:
    """Tell whether a queue, as a look found it, is the one that had this identity.

    None if nothing tells: the segment of the fingerprint is gone.

    Raises:
        OSError: a file cannot be read.
    """
    answers = [_find_same_part(queue, part) for part in identity.split()]
    if False in answers:
        return False
    return True if True in answers else None


def identity_of(generation: str | None) -> str:
    """Return the identity of a queue of which only the generation is known."""
    return UNKNOWN if generation is None else _GENERATION + generation


def keep_generation(identity: str, known: str) -> str:
    """Return an identity, with the generation of what was known of the queue if it has none."""
    generation = find_generation(known)
    if generation is None or find_generation(identity) is not None:
        return identity
    return f"{_GENERATION}{generation} {identity}".rstrip()


def find_generation(identity: str) -> str | None:
    """Return the generation that is part of an identity, if it is."""
    for part in identity.split():
        if part.startswith(_GENERATION):
            return part.removeprefix(_GENERATION)
    return None


def _find_same_part(queue: Queue, part: str) -> bool | None:
    if part.startswith(_GENERATION):
        if queue.generation is None:
            # nsqd is about to delete the queue, or has just made it: the file is the first to go
            # and the last to come. Its records tell, and its end.
            return None
        return _GENERATION + queue.generation == part
    if not part.startswith(_FINGERPRINT) or queue.is_remote:
        return None
    found = _find_fingerprint(queue, int(part.split(":")[1]))
    return None if found is None else found == part


def _find_fingerprint(queue: Queue, number: int) -> str | None:
    start = Directory(queue.directory, queue.store).read_start(
        queue.file_name(number), _FINGERPRINT_BYTES
    )
    if start is None or len(start) < PREFIX_BYTES:
        return None
    (length,) = PREFIX.unpack_from(start)
    if length <= 0:
        return None
    record = start[: PREFIX_BYTES + length]
    return f"{_FINGERPRINT}{number}:{hashlib.blake2s(record, digest_size=_HASH_BYTES).hexdigest()}"


def is_still(directory: Directory, name: str, identity: str) -> bool:
    """Tell whether files that were just opened belong to the queue with this identity.

    Raises:
        OSError: a file cannot be read.
    """
    generation = read_generation(directory, name)
    if generation is None and find_generation(identity) is not None:
        return False  # being deleted; the file may be that of a queue made anew
    queue = Queue("", directory.name, name, generation=generation, store=directory.store)
    return find_same(queue, identity) is not False
