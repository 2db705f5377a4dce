"""FileSend: a part of a file reaches a client whole, however slowly it reads."""

import asyncio
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqd.http.file_body import BLOCK_BYTES, MAX_UNSENT_BYTES, FileBody, FileSend

pytestmark = pytest.mark.usefixtures("closes_files")

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
CONTENT = os.urandom(3 * BLOCK_BYTES + 17)
PATIENCE_S = 60.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "segment"
    file.write_bytes(CONTENT)
    return file


async def send(
    path: Path,
    pool: ThreadPoolExecutor,
    *,
    is_tls: bool,
    offset: int = 0,
    size_bytes: int = len(CONTENT),
) -> tuple[bytes, Exception | None]:
    """Send a part of a file to a reader; return the bytes that came, and the error of the end."""
    server_side, client_side = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(
        asyncio.Protocol, sock=server_side
    )
    reader, writer = await asyncio.open_connection(sock=client_side)
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def end(error: Exception | None) -> None:
        ended.set_result(error)
        transport.close()

    body = FileBody(os.open(path, os.O_RDONLY), offset, size_bytes)
    sending = FileSend(HEAD, body, transport, pool, PATIENCE_S)
    sending.start(end, is_tls=is_tls)
    got = await reader.read(-1)
    writer.close()
    assert body.fd == -1, "the file is closed"
    return got, await ended


@pytest.mark.parametrize("is_tls", [False, True])
class TestWholeFile:
    async def test_a_part_of_a_file(
        self, path: Path, pool: ThreadPoolExecutor, *, is_tls: bool
    ) -> None:
        got, error = await send(path, pool, is_tls=is_tls, offset=5, size_bytes=2 * BLOCK_BYTES + 1)

        assert error is None
        assert got == HEAD + CONTENT[5 : 2 * BLOCK_BYTES + 6]

    async def test_a_file_that_is_shorter_than_it_was(
        self, path: Path, pool: ThreadPoolExecutor, *, is_tls: bool
    ) -> None:
        got, error = await send(path, pool, is_tls=is_tls, size_bytes=len(CONTENT) + 1)

        assert str(error) == "the file is shorter than it was"
        assert got == HEAD + CONTENT


class SlowTransport(asyncio.Transport):
    """The transport of a client that takes `step_bytes` between two looks at the buffer."""

    def __init__(self, step_bytes: int) -> None:
        super().__init__()
        self.written_bytes = 0
        self.highest_bytes = 0
        self._step_bytes = step_bytes
        self._unsent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)
        self._unsent_bytes += len(data)
        self.highest_bytes = max(self.highest_bytes, self._unsent_bytes)

    def get_write_buffer_size(self) -> int:
        self._unsent_bytes = max(self._unsent_bytes - self._step_bytes, 0)
        return self._unsent_bytes


async def send_slowly(
    path: Path, pool: ThreadPoolExecutor, transport: SlowTransport, stall_s: float
) -> Exception | None:
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    body = FileBody(os.open(path, os.O_RDONLY), 0, len(CONTENT))
    sending = FileSend(HEAD, body, transport, pool, stall_s)
    sending.start(ended.set_result, is_tls=True)
    return await ended


async def test_a_slow_client_is_waited_for_while_it_reads(
    path: Path, pool: ThreadPoolExecutor
) -> None:
    # Every look at the buffer is later than the time without progress allows, and finds progress.
    transport = SlowTransport(step_bytes=BLOCK_BYTES // 8)

    assert await send_slowly(path, pool, transport, stall_s=0.0) is None
    assert transport.written_bytes == len(HEAD) + len(CONTENT)
    assert transport.highest_bytes <= MAX_UNSENT_BYTES + BLOCK_BYTES


async def test_a_client_that_takes_nothing_is_given_up(
    path: Path, pool: ThreadPoolExecutor
) -> None:
    transport = SlowTransport(step_bytes=0)

    error = await send_slowly(path, pool, transport, stall_s=0.0)

    assert isinstance(error, TimeoutError)
    assert str(error) == "the client does not read"
    assert transport.written_bytes <= len(HEAD) + MAX_UNSENT_BYTES + BLOCK_BYTES


class RestingTransport(asyncio.Transport):
    """Holds these numbers of bytes, one after the other, each time that it is asked."""

    def __init__(self, *unsent_bytes: int) -> None:
        super().__init__()
        self.unsent_bytes = list(unsent_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes.pop(0) if len(self.unsent_bytes) > 1 else self.unsent_bytes[0]


async def test_a_client_that_rests_after_it_has_read_some_has_all_its_time_again(
    path: Path, pool: ThreadPoolExecutor
) -> None:
    full = MAX_UNSENT_BYTES + 2
    transport = RestingTransport(full, full - 1, full - 1, 0)
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    body = FileBody(os.open(path, os.O_RDONLY), 0, 5)

    FileSend(HEAD, body, transport, pool, PATIENCE_S).start(ended.set_result, is_tls=True)

    assert await ended is None
