"""Directories and files, local or remote, through pyarrow.fs.

A data directory is named by a plain path or by a URI. `expand` parts a URI into its place
and how to reach it before anything else: a name shows no query and no key, and is what is globbed.
Names of queue files are joined to the path *inside* the file system, never to the URI: they may
contain `#`, `%` and `:`.
"""

import contextlib
import fnmatch
import mmap
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from diskqueue import layout
from spark_jobs.object_store import AMBIENT, StoreSettings, is_s3, split_uri

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*)\}")
# All but %, # and ?, which mean something in a URI.
_PLAIN = " !\"$&'()*+,-./:;<=>@[\\]^_`{|}~"
_MAX_GLOB_DIRECTORIES = 100_000
# With an endpoint of one's own any region does, and none has to be looked up.
_DEFAULT_REGION = "us-east-1"
_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 60.0
_MAX_ATTEMPTS = 5


class Directory:
    """A directory, which need not exist."""

    __slots__ = ("_filesystem", "_path", "name", "store")

    def __init__(self, name: str, store: StoreSettings = AMBIENT) -> None:
        """Open the file system.

        Args:
            name: a path, or a URI that pyarrow.fs can open, without a query.

        Raises:
            ValueError: there is no such kind of file system.
            OSError: it cannot be reached.
        """
        self.name = _without_slash(name)
        self.store = store
        self._filesystem, self._path = _open_filesystem(self.name, store)

    def child(self, name: str) -> "Directory":
        """Return a directory in this one."""
        shown = quote(name, safe=_PLAIN) if _URI.match(self.name) else name
        return Directory(self.path_of(shown), self.store)

    def parent(self) -> "Directory":
        """Return the directory that this one is in."""
        return Directory(self.name.rpartition("/")[0] or "/", self.store)

    @property
    def is_local(self) -> bool:
        """Whether its files are this machine's own."""
        return isinstance(self._filesystem, fs.LocalFileSystem)

    def find_local_path(self) -> str | None:
        """Return its path on this machine, or None if it is elsewhere."""
        return self._path if self.is_local else None

    def exists(self) -> bool:
        """Tell whether there is such a directory.

        Raises:
            OSError: it cannot be looked at.
        """
        return bool(self._filesystem.get_file_info(self._path).type == fs.FileType.Directory)

    def list_files(self) -> dict[str, int]:
        """Return the size of each file in it.

        Raises:
            OSError: it does not exist or cannot be listed.
        """
        if self.is_local:
            return self._list_local_files()
        infos = self._filesystem.get_file_info(fs.FileSelector(self._path))
        return {info.base_name: info.size for info in infos if info.type == fs.FileType.File}

    def _list_local_files(self) -> dict[str, int]:
        """List with Python: Arrow fails altogether at a name that is not UTF-8."""
        sizes: dict[str, int] = {}
        # All names first: a segment is complete once its successor is there, so the size of each
        # one that has a successor is final. Looked at while listing, it could be an older size.
        with os.scandir(self._path) as listing:
            entries = list(listing)
        for entry in entries:
            # A running nsqd may delete a file between the listing and this look at it.
            with contextlib.suppress(FileNotFoundError):
                if _is_text(entry.name) and entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
        return sizes

    def list_directories(self) -> list[str]:
        """Return the names of the directories in it, none if it does not exist.

        Raises:
            OSError: it cannot be listed.
        """
        if self.is_local:
            if not self.exists():
                return []
            with os.scandir(self._path) as entries:
                return sorted(
                    each.name for each in entries if _is_text(each.name) and each.is_dir()
                )
        selector = fs.FileSelector(self._path, allow_not_found=True)
        infos = self._filesystem.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def read_start(self, file_name: str, max_bytes: int) -> bytes | None:
        """Read the first bytes of a file, or return None if there is no such file.

        Raises:
            OSError: it cannot be read.
        """
        try:
            with self._filesystem.open_input_stream(self._join(file_name)) as stream:
                content: bytes = stream.read(max_bytes)
                return content
        except FileNotFoundError:
            return None

    def open_file(self, file_name: str) -> pa.NativeFile:
        """Open a file to read at any offset.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be opened.
        """
        return self._filesystem.open_input_file(self._join(file_name))

    def read_whole(self, file_name: str) -> bytes | mmap.mmap:
        """Return a file's content, mapped if it is local; for files that do not change any more.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
        """
        if not self.is_local:
            with self.open_file(file_name) as file:
                content: bytes = file.read()
                return content
        with open(self._join(file_name), "rb") as local_file:
            if os.fstat(local_file.fileno()).st_size == 0:
                return b""  # cannot be mapped
            return mmap.mmap(local_file.fileno(), 0, access=mmap.ACCESS_READ)

    def path_of(self, file_name: str) -> str:
        """Return the name of a file for messages to people."""
        return f"{self.name.rstrip('/')}/{file_name}"

    def _join(self, file_name: str) -> str:
        return f"{self._path.rstrip('/')}/{file_name}"


class OutputDirectory:
    """A directory to write results to; made when it is not there."""

    def __init__(self, name: str, store: StoreSettings = AMBIENT) -> None:
        """Open the file system.

        Args:
            name: a path, or a URI that pyarrow.fs can open.

        Raises:
            ValueError: there is no such kind of file system.
            OSError: it cannot be reached.
        """
        place, self._store = split_uri(name, store)
        self.name = _without_slash(place)
        self._filesystem, self._path = _open_filesystem(self.name, self._store)

    @property
    def is_local(self) -> bool:
        """Whether its files are this machine's own."""
        return isinstance(self._filesystem, fs.LocalFileSystem)

    def make(self) -> None:
        """Make the directory now, so that a job fails before its work and not after.

        Raises:
            OSError: it cannot be made.
        """
        self._filesystem.create_dir(self._path, recursive=True)

    def reading(self) -> Directory:
        """Return the same directory to read from."""
        return Directory(self.name, self._store)

    def write(self, file_name: str, content: bytes) -> None:
        """Write a file whole or not at all, in a directory below if its name says so.

        Raises:
            OSError: it cannot be written.
        """
        path = self._make_room(file_name)
        if self.is_local:
            layout.write_atomically(path, content)
            return
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(content)

    def write_chunks(self, file_name: str, chunks: Iterable[bytes]) -> int:
        """Write a file of any size, chunk by chunk; return its size, as it has arrived.

        A local file is there whole and durably, or not at all. In a store, a write that was ended
        by an error may leave a shorter one.

        Raises:
            OSError: it cannot be written, or has not arrived whole.
        """
        path = self._make_room(file_name)
        size = self._write_local(path, chunks) if self.is_local else self._send(path, chunks)
        arrived = self._filesystem.get_file_info(path).size
        if arrived != size:
            raise OSError(f"{file_name} has arrived with {arrived} bytes of {size}")
        return size

    def _send(self, path: str, chunks: Iterable[bytes]) -> int:
        size = 0
        with self._filesystem.open_output_stream(path) as stream:
            for chunk in chunks:
                stream.write(chunk)
                size += len(chunk)
        return size

    @staticmethod
    def _write_local(path: str, chunks: Iterable[bytes]) -> int:
        temporary = f"{path}.tmp"
        # Messages are their owner's alone, as nsqd keeps them.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, layout.FILE_MODE), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(temporary, path)
        layout.fsync_directory(os.path.dirname(path))
        return size

    def _make_room(self, file_name: str) -> str:
        """Return the path of a file, whose directory is made; an object store needs none."""
        path = f"{self._path.rstrip('/')}/{file_name}"
        if not is_s3(self.name):
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return path


def _without_slash(name: str) -> str:
    """Return a name without the slashes at its end, but those of `/` and of `s3://`."""
    plain = name.rstrip("/")
    return f"{plain}//" if plain.endswith(":") and "://" in name else plain or "/"


def expand(pattern: str, store: StoreSettings = AMBIENT) -> list[Directory]:
    """Return the directories that a path, a glob or a URI stands for; none if a glob finds none.

    A glob has `*`, `?`, `[a-z]` and `{a,b}`, as everywhere in Spark.

    Raises:
        ValueError: there is no such kind of file system.
        OSError: a directory cannot be listed.
    """
    return _expand(*split_uri(pattern, store))


def _expand(pattern: str, store: StoreSettings) -> list[Directory]:
    braces = _BRACES.search(pattern)
    if not (braces or _GLOB.search(pattern)):
        return [Directory(pattern, store)]
    # A bucket's name has no such characters; only a path may look like a glob and be none.
    authority = _authority(pattern)
    is_plain = not (_GLOB.search(authority) or _BRACES.search(authority))
    if is_plain and Directory(pattern, store).exists():
        return [Directory(pattern, store)]
    if braces:
        head, tail = pattern[: braces.start()], pattern[braces.end() :]
        choices = [f"{head}{choice}{tail}" for choice in braces[1].split(",")]
        return [each for choice in choices for each in _expand(choice, store) if each.exists()]
    parts = pattern.rstrip("/").split("/")
    first = next(i for i, part in enumerate(parts) if _GLOB.search(part))
    if not is_plain:
        raise ValueError(f"the name of a bucket or host is no pattern: {pattern}")
    start = "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")
    found = [Directory(start, store)]
    for part in parts[first:]:
        found = [
            child
            for parent in found
            for child in _match_children(parent, part)
            if len(found) < _MAX_GLOB_DIRECTORIES
        ]
    return found


def _authority(pattern: str) -> str:
    """Return the bucket or host of a URI; nothing for a path."""
    return pattern.partition("://")[2].partition("/")[0]


def _match_children(directory: Directory, pattern: str) -> list[Directory]:
    if not _GLOB.search(pattern):
        child = Directory(directory.path_of(pattern), directory.store)
        return [child] if child.exists() else []
    return [
        directory.child(name)
        for name in directory.list_directories()
        if fnmatch.fnmatchcase(name, pattern) and not name.startswith(".")
    ]


def _is_text(name: str) -> bool:
    """Tell whether a file's name is UTF-8; nsqd makes no others."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_filesystem(name: str, store: StoreSettings) -> tuple[fs.FileSystem, str]:
    if not _URI.match(name):
        return fs.LocalFileSystem(), name
    if is_s3(name):
        place = name.partition("://")[2]
        return _open_s3(place.partition("/")[0], store), unquote(place)
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{name}?{store.query}" if store.query else name)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # The error's own text may have the query, and so a key.
        reason = "its query is not valid" if store.query else error
        raise ValueError(f"cannot open {name}: {reason}") from None
    return filesystem, path


@lru_cache(maxsize=64)
def _open_s3(bucket: str, store: StoreSettings) -> fs.FileSystem:
    if not bucket:
        raise ValueError("a URI of S3 names a bucket: s3://bucket/path")
    scheme, _, host = (store.endpoint or "").partition("://")
    region = store.region
    if region is None:
        region = _DEFAULT_REGION if store.endpoint else fs.resolve_s3_region(bucket)
    keys = store.keys
    return fs.S3FileSystem(
        access_key=keys and keys.access_key,
        secret_key=keys and keys.secret_key,
        session_token=keys and keys.session_token,
        region=region,
        scheme=scheme or None,
        endpoint_override=host or None,
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_MAX_ATTEMPTS),
    )
