"""A segment of a node, or a part of its memory, as a file that is read from front to back.

A thread fetches the next block while records of this one are made to columns, so the network and
the CPU work at the same time. Memory: two blocks, whatever the size of the file.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from spark_jobs.read.fleet.client import RefusedError, find_client
from spark_jobs.read.fleet.leases import Lease, reading, take_over
from spark_jobs.read.fleet.options import FleetOptions

BLOCK_BYTES = 4 * 1024 * 1024


class RemoteFile:
    """A file of a node, up to an end that is known."""

    def __init__(
        self, url: str, file_name: str, query: dict[str, str], end: int, options: FleetOptions
    ) -> None:
        """Point to a file; the first read fetches.

        Args:
            query: `id`, the lease; or `from` and `generation`.
        """
        self._lease = Lease(url, query["id"]) if "id" in query else None
        self._target = f"/segments/{quote(file_name, safe='')}?{urlencode(query)}"
        self._end = end
        self._options = options
        self._client = find_client(url, options, "ranges")
        self._resources = ExitStack()
        self._position = 0
        self._block_start = 0
        self._block = memoryview(b"")
        self._next: tuple[int, Future[memoryview]] | None = None

    def __enter__(self) -> Self:
        self._resources.enter_context(reading(self._lease, self._options))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The connection is used by the next file only when nothing of this one is on its way.
        if self._next is not None and not self._next[1].cancel():
            self._next[1].exception()
        self._next = None
        self._resources.close()

    def size(self) -> int:
        """Return the end of the bytes that may be read."""
        return self._end

    def seek(self, position: int) -> None:
        """Go to an offset."""
        self._position = position

    def readinto(self, view: memoryview) -> int:
        """Read at the present position; return how many bytes, 0 only at the end.

        Raises:
            NodeError: the node cannot be reached, or refuses.
        """
        offset = self._position - self._block_start
        if not 0 <= offset < len(self._block):
            self._turn_to(self._position)
            offset = self._position - self._block_start
        found = self._block[offset : offset + len(view)]
        view[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _turn_to(self, position: int) -> None:
        """Make the block at a position the present one, and have the one behind it fetched."""
        coming, self._next = self._next, None
        if coming is None or coming[0] != position:
            if coming is not None:
                coming[1].exception()
            coming = position, self._fetch(position)
        self._block_start, self._block = position, coming[1].result()
        following = position + len(self._block)
        if self._block and following < self._end:
            self._next = following, self._fetch(following)

    def _fetch(self, position: int) -> Future[memoryview]:
        size = max(min(BLOCK_BYTES, self._end - position), 0)
        return _fetcher().submit(self._read_block, position, size)

    def _read_block(self, position: int, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        if self._lease is not None:
            take_over(self._client, self._lease, self._options)
        block = memoryview(bytearray(size))
        return block[: self._client.read_range(self._target, position, block)]


def read_whole(
    url: str, file_name: str, query: dict[str, str], size: int, options: FleetOptions
) -> bytes:
    """Return all of a small file.

    Raises:
        NodeError: the node cannot be reached, or refuses.
    """
    return read_range(url, file_name, query, (0, size), options)


def read_range(
    url: str,
    file_name: str,
    query: dict[str, str],
    place: tuple[int, int],
    options: FleetOptions,
) -> bytes:
    """Return some bytes of a file, from an offset on and so many; fewer only at its end.

    Raises:
        NodeError: the node cannot be reached, or refuses.
    """
    offset, size = place
    data = bytearray(size)
    done = 0
    file = RemoteFile(url, file_name, query, offset + size, options)
    with file, memoryview(data) as view:
        file.seek(offset)
        while done < size and (count := file.readinto(view[done:])):
            done += count
    return bytes(data[:done])


def read_checksums(
    url: str, file_name: str, query: dict[str, str], max_bytes: int, options: FleetOptions
) -> tuple[bytes, bool] | None:
    """Return a checksum file, and whether it has the mark of its segment; None if there is none.

    Raises:
        NodeError: the node cannot be reached, or refuses.
    """
    target = f"/segments/{quote(file_name, safe='')}?{urlencode(query)}"
    client = find_client(url, options, "ranges")
    lease = Lease(url, query["id"]) if "id" in query else None

    def read() -> tuple[bytes, bool]:
        if lease is not None:
            take_over(client, lease, options)
        content, headers = client.read_file(target, max_bytes)
        return content, headers.get("X-NSQ-Same-Mark") == "true"

    with reading(lease, options):
        try:
            return _fetcher().submit(read).result()
        except RefusedError as error:
            if error.code != "SEGMENT_NOT_FOUND":
                raise
            return None


@lru_cache(maxsize=1)
def _fetcher() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "segments")
