"""Names and texts of the files of a queue: the only place that has "%06d.dat".

    NAME.diskqueue.000042.dat                segment 42
    NAME.diskqueue.000042.dat.bad            the same, found damaged: never read, never removed
    NAME.diskqueue.meta.dat                  the positions: `Metadata`
    NAME.diskqueue.meta.dat.<random>.tmp     a metadata file that was being written

go-diskqueue ignores these, which are ours alone and may be missing:

    NAME.diskqueue.finished                  finished records behind the read position: `sidecar`
    NAME.diskqueue.finished.<random>.tmp     the same while it is being written
    NAME.diskqueue.due, .due.old             when deferred messages are due: nsqd's `due_log`
    NAME.diskqueue.causes, .causes.old       where dead letters come from: nsqd's `causes`
    NAME.diskqueue.generation                which queue of that name this is: `identity`
    NAME.diskqueue.000042.crc                the checksums of segment 42: `checksums`
    NAME.diskqueue.000042.crc.bad            those of 000042.dat.bad, for `salvage`

A new file needs a kind in `_FILE_NAME`, a field of `QueueFiles`, its removal in `sync_job`, a row
in docs/contract/diskqueue.md, crash points in tests/support/faults; the archive has queues too.

NAME is a topic, or `topic:channel`. Functions here hold no state. Paths are plain strings, since a
broker opens thousands of queues, and are never used as format strings: `%` may be part of one.
"""

import contextlib
import errno
import os
import random
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from diskqueue.errors import CorruptMetadataError

FILE_MODE = 0o600

_FILE_NAME = re.compile(
    r"(?P<name>.+)\.diskqueue\."
    # As "%06d" writes numbers up to MAX_NUMBER: another spelling of one, with more zeros or digits
    # of another script, would be opened under a name that no file has.
    r"(?:(?P<number>[0-9]{6}|[1-9][0-9]{6,17})\.(?P<ending>dat|crc)(?P<bad>\.bad(?:\.[0-9]+)?)?"
    r"|(?P<kind>meta\.dat|finished|due|due\.old|causes|causes\.old|generation)"
    r"(?P<temporary>\.[0-9]+\.tmp)?)",
    re.DOTALL,
)
# The fields of `QueueFiles` that say that there are such.
_FIELDS = {
    "meta.dat": "has_metadata",
    "finished": "has_finished",
    "due": "has_due",
    "due.old": "has_due",
    "causes": "has_causes",
    "causes.old": "has_causes",
    "generation": "has_generation",
}
# Files and positions go no farther: half of an int64, so that counting on from one stays within it.
MAX_NUMBER = 1 << 62
# Nineteen digits are enough for every int64, the type that go-diskqueue scans.
_METADATA = re.compile(rb"(-?\d{1,19})\s+(\d{1,19}),(\d{1,19})\s+(\d{1,19}),(\d{1,19})\s*")
# A bound on the search for a free quarantine name.
_MAX_QUARANTINE_NAMES = 1000


@dataclass(frozen=True, slots=True)
class Metadata:
    """The positions a queue persists; READ is the first record not finished, WRITE the end."""

    depth: int
    read_file: int
    read_pos: int
    write_file: int
    write_pos: int

    @property
    def is_sane(self) -> bool:
        """Whether the read position is not beyond the write position."""
        return (self.read_file, self.read_pos) <= (self.write_file, self.write_pos)


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue as a directory listing shows them."""

    name: str
    has_metadata: bool = False
    has_finished: bool = False
    has_due: bool = False
    has_causes: bool = False
    has_generation: bool = False
    segments: dict[int, int] = field(default_factory=dict)  # number -> size in bytes
    # The numbers of the segments that have a checksum file, or had one.
    checksums: set[int] = field(default_factory=set)
    bad_files: list[str] = field(default_factory=list)
    temporary_files: list[str] = field(default_factory=list)


def segment_path(directory: str, name: str, number: int) -> str:
    """Return the path of a segment."""
    return f"{directory}/{name}.diskqueue.{number:06d}.dat"


def checksum_path(segment_path: str) -> str:
    """Return the path of the checksum file of a segment, or of one that was set aside."""
    head, _, tail = segment_path.rpartition(".dat")
    return f"{head}.crc{tail}"


def metadata_path(directory: str, name: str) -> str:
    """Return the path of the metadata file."""
    return f"{directory}/{name}.diskqueue.meta.dat"


def has_metadata(directory: str | os.PathLike[str], name: str) -> bool:
    """Tell whether a queue has a metadata file, without a listing of the directory."""
    return os.path.lexists(metadata_path(os.fspath(directory), name))


def finished_path(directory: str, name: str) -> str:
    """Return the path of the sidecar: the finished records behind the read position."""
    return f"{directory}/{name}.diskqueue.finished"


def due_path(directory: str, name: str) -> str:
    """Return the path of the log of due times, which nsqd keeps beside the queue."""
    return f"{directory}/{name}.diskqueue.due"


def causes_path(directory: str, name: str) -> str:
    """Return the path of the causes of dead letters, which nsqd keeps beside the queue."""
    return f"{directory}/{name}.diskqueue.causes"


def generation_path(directory: str, name: str) -> str:
    """Return the path of the file that tells a queue from others of the same name."""
    return f"{directory}/{name}.diskqueue.generation"


def quarantine_path(path: str) -> str:
    """Return the name for a damaged segment: `.bad`, or `.bad.1` and so on if an older one has it.

    Numbering can restart, so two damaged segments can claim one name; go-diskqueue would overwrite
    the older, and with it the records that could still be salvaged.
    """
    candidate = f"{path}.bad"
    for suffix in range(1, _MAX_QUARANTINE_NAMES):
        if not os.path.lexists(candidate):
            break
        candidate = f"{path}.bad.{suffix}"
    return candidate


def quarantine(path: str) -> str:
    """Rename a damaged segment, with its checksum file; return the new name of the segment.

    Raises:
        OSError: the segment has the name that it had.
    """
    target = quarantine_path(path)
    os.rename(path, target)
    # Without it `salvage` knows less.
    with contextlib.suppress(OSError):
        os.rename(checksum_path(path), checksum_path(target))
    return target


def has_quarantine_name(path: str) -> bool:
    """Tell whether a segment's `.bad` is the same file."""
    try:
        return os.path.samefile(f"{path}.bad", path)
    except OSError:
        return False


def link_quarantined(path: str) -> bool:
    """Give a damaged segment its quarantine name too, unless it has it; False if that fails."""
    if has_quarantine_name(path):
        return True
    target = quarantine_path(path)
    try:
        os.link(path, target)
    except OSError:
        return False  # not every file system has links, and a full one has no room for a name
    # Without it `salvage` knows less.
    with contextlib.suppress(OSError):
        os.link(checksum_path(path), checksum_path(target))
    return True


def split_queue_name(name: str) -> tuple[str, str | None]:
    """Return the topic and channel of a queue; the channel is None for a topic's own queue."""
    topic, separator, channel = name.partition(":")
    return (topic, channel) if separator else (topic, None)


def join_queue_name(topic: str, channel: str | None) -> str:
    """Return the name of a channel's queue, or of a topic's own one without a channel."""
    return topic if channel is None else f"{topic}:{channel}"


def parse_segment_name(file_name: str) -> tuple[str, int] | None:
    """Return the queue name and number if this names a segment in use, else None."""
    match = _FILE_NAME.fullmatch(file_name)
    if match is None or match["number"] is None or match["bad"] or match["ending"] != "dat":
        return None
    return match["name"], int(match["number"])


def find_checked_name(file_name: str) -> str | None:
    """Return the name of the segment in use whose checksum file has this name, else None."""
    match = _FILE_NAME.fullmatch(file_name)
    if match is None or match["bad"] or match["ending"] != "crc":
        return None
    return f"{file_name.removesuffix('.crc')}.dat"


def parse_any_segment_name(file_name: str) -> tuple[str, int] | None:
    """Return the queue name and number if this names a segment, be it a `.bad` one, else None."""
    match = _FILE_NAME.fullmatch(file_name)
    if match is None or match["ending"] != "dat":
        return None
    return match["name"], int(match["number"])


def is_other_file(file_name: str) -> bool:
    """Tell whether this names a file of a queue that has no records in it."""
    match = _FILE_NAME.fullmatch(file_name)
    return match is not None and (match["kind"] is not None or match["ending"] == "crc")


def list_queues(
    directory: str | os.PathLike[str], file_names: Iterable[str] | None = None
) -> dict[str, QueueFiles]:
    """Return every queue that has a file in the directory, by name.

    Args:
        file_names: the names in the directory, if the caller has listed it.

    Raises:
        OSError: the directory cannot be listed.
    """
    directory = os.fspath(directory)
    queues: dict[str, QueueFiles] = {}
    for file_name in os.listdir(directory) if file_names is None else file_names:
        match = _FILE_NAME.fullmatch(file_name)
        if match is not None:
            files = queues.setdefault(match["name"], QueueFiles(match["name"]))
            _add_file(files, match, f"{directory}/{file_name}")
    return {name: _sort(files) for name, files in sorted(queues.items())}


def find_queue_files(directory: str, name: str) -> QueueFiles:
    """Return the files of one queue; costs a listing of the whole directory.

    Raises:
        OSError: the directory cannot be listed.
    """
    files = QueueFiles(name)
    prefix = f"{name}.diskqueue."
    # Not scandir: a handful of thousands of files is ours, and listdir takes half the time.
    for file_name in os.listdir(directory):
        if file_name.startswith(prefix):
            match = _FILE_NAME.fullmatch(file_name)
            if match is not None and match["name"] == name:
                _add_file(files, match, f"{directory}/{file_name}")
    return _sort(files)


def _add_file(files: QueueFiles, match: re.Match[str], path: str) -> None:
    if match["ending"] == "crc":
        if not match["bad"]:
            files.checksums.add(int(match["number"]))
    elif match["bad"]:
        files.bad_files.append(path)
    elif match["number"] is not None:
        # A running daemon may delete a segment between the listing and this look at it.
        size = find_size(path)
        if size is not None:
            files.segments[int(match["number"])] = size
    elif match["temporary"]:
        files.temporary_files.append(path)
    else:
        setattr(files, _FIELDS[match["kind"]], True)


def _sort(files: QueueFiles) -> QueueFiles:
    files.segments = dict(sorted(files.segments.items()))
    files.bad_files.sort()
    return files


def find_size(path: str) -> int | None:
    """Return the size of a file, or None if the name is free, or that of a directory, pipe or such.

    Raises:
        OSError: the file may exist but cannot be looked at.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    # Opening a pipe would wait for ever, and reading a directory fails for ever.
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def format_metadata(metadata: Metadata) -> bytes:
    """Return the content of a metadata file."""
    return (
        f"{metadata.depth}\n{metadata.read_file},{metadata.read_pos}\n"
        f"{metadata.write_file},{metadata.write_pos}\n"
    ).encode("ascii")


def parse_metadata(text: bytes) -> Metadata:
    """Return the positions in the text of a metadata file.

    Raises:
        CorruptMetadataError: this is not the text of one.
    """
    match = _METADATA.fullmatch(text)
    if match is None:
        raise CorruptMetadataError(f"not the text of a metadata file: {text[:80]!r}")
    numbers = [int(group) for group in match.groups()]
    if max(numbers) > MAX_NUMBER:
        raise CorruptMetadataError(f"numbers that no queue has: {text[:80]!r}")
    return Metadata(*numbers)


def read_metadata(directory: str, name: str) -> Metadata | None:
    """Return the persisted positions of a queue, or None if it has no metadata file.

    Raises:
        CorruptMetadataError: the file cannot be parsed.
        OSError: the file cannot be read.
    """
    path = metadata_path(directory, name)
    try:
        text = _read_beginning(path)
    except FileNotFoundError:
        if not os.path.lexists(path):
            return None
        # A link that leads nowhere; or a running daemon has made the file between the two looks.
        if find_size(path) is None:
            raise CorruptMetadataError("not a file") from None
        return read_metadata(directory, name)
    return parse_metadata(text)


def _read_beginning(path: str) -> bytes:
    """Return the first 4096 bytes of a file; 15 us less than a file object, of thousands of queues.

    Raises:
        CorruptMetadataError: the path is that of a directory, a pipe or such.
        OSError: the file cannot be read.
    """
    try:
        # Not to wait for the other end of a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptMetadataError("not a file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CorruptMetadataError("not a file")
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file whole and durably: a crash leaves the old content or the new.

    Raises:
        OSError: the file is as it was, unless the last step, the directory's fsync, failed.
    """
    path = os.fspath(path)
    temporary = write_aside(path, content, is_durable=True)
    put_in_place(temporary, path)
    fsync_directory(os.path.dirname(path) or ".")


def write_aside(path: str, content: bytes, *, is_durable: bool) -> str:
    """Write the next content of a file to a temporary one beside it; return its path.

    Args:
        is_durable: make it so; else that is up to the caller, before `put_in_place`.

    Raises:
        OSError: there is no temporary file.
    """
    temporary = f"{path}.{random.getrandbits(62)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            write_all(fd, content, 0)
            if is_durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        _discard(temporary)
        raise
    return temporary


def put_in_place(temporary: str, path: str) -> None:
    """Replace a file by one that was written aside; the caller syncs the directory.

    Raises:
        OSError: the file is as it was, and the temporary one gone.
    """
    try:
        _replace(temporary, path)
    except OSError:
        _discard(temporary)
        raise


def _discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _replace(source: str, target: str) -> None:
    try:
        os.replace(source, target)
    except IsADirectoryError:
        # A directory has the name; it is in the way, but not the queue's to remove.
        os.rename(target, quarantine_path(target))
        os.replace(source, target)


def write_all(fd: int, content: bytes | memoryview, position: int) -> None:
    """Write all bytes at a position of the file, normally with one call.

    Raises:
        OSError: a part of the content may have been written.
    """
    written = os.pwrite(fd, content, position)
    while written < len(content):
        # A short write means that the disk or a quota is almost full: the next one says so.
        written += os.pwrite(fd, memoryview(content)[written:], position + written)


def remove(path: str) -> None:
    """Remove a file if it is there; not durable before the directory is.

    Raises:
        OSError: it is still there.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_segment(path: str, *, has_checksums: bool) -> None:
    """Remove a segment if it is there; not durable before the directory is.

    Args:
        has_checksums: remove its checksum file too. If only that fails, the next start does it.

    Raises:
        OSError: the segment is still there.
    """
    remove(path)
    if has_checksums:
        with contextlib.suppress(OSError):
            os.unlink(checksum_path(path))


def is_in_the_way(path: str) -> bool:
    """Tell whether a directory, a pipe or such, or a link to nowhere, has the name of a file."""
    try:
        return find_size(path) is None and os.path.lexists(path)
    except OSError:
        return False


def fsync_directory(directory: str) -> None:
    """Make creations, renames and deletions in the directory durable.

    Raises:
        OSError: they may not be.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
