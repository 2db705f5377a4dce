"""FileSend: a part of a file reaches a client whole, however slowly it reads."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqd.http.file_body import BLOCK_BYTES, MAX_UNSENT_BYTES, FileBody, FileSend, FileThreads
from tests.support.waiting import until

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


def test_the_file_of_a_reply_that_is_never_sent_is_closed(path: Path) -> None:
    body = FileBody(os.open(path, os.O_RDONLY), 0, 5)
    fd = body.fd

    del body

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_is_closed_once(path: Path) -> None:
    body = FileBody(os.open(path, os.O_RDONLY), 0, 5)
    fd = body.fd
    body.close()
    assert os.open(path, os.O_RDONLY) == fd, "another file has the number now"

    body.close()

    os.close(fd)


async def test_replies_before_are_sent_before_the_file(
    path: Path, pool: ThreadPoolExecutor
) -> None:
    server_side, client_side = socket.socketpair()
    server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport, _ = await asyncio.get_running_loop().create_connection(
        asyncio.Protocol, sock=server_side
    )
    reader, writer = await asyncio.open_connection(sock=client_side)
    before = os.urandom(1_000_000)
    transport.write(before)
    assert transport.get_write_buffer_size()
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    body = FileBody(os.open(path, os.O_RDONLY), 0, len(CONTENT))
    FileSend(HEAD, body, transport, pool, PATIENCE_S).start(ended.set_result, is_tls=False)
    got = await reader.readexactly(len(before + HEAD + CONTENT))

    assert got == before + HEAD + CONTENT
    assert await ended is None
    transport.close()
    writer.close()


async def test_an_abandoned_file_is_closed_and_its_end_is_not_told(
    path: Path, pool: ThreadPoolExecutor
) -> None:
    transport = RestingTransport(MAX_UNSENT_BYTES + 1)
    ends: list[Exception | None] = []
    body = FileBody(os.open(path, os.O_RDONLY), 0, 5)
    sending = FileSend(HEAD, body, transport, pool, PATIENCE_S)
    sending.abandon()  # before its start: nothing to end
    sending.start(ends.append, is_tls=True)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert body.fd >= 0

    sending.abandon()
    await until(lambda: body.fd < 0)

    assert ends == []
    sending.abandon()


def test_threads_are_made_when_they_are_needed_and_again_after_a_close() -> None:
    threads = FileThreads()
    threads.close()
    first = threads.pool()
    assert threads.pool() is first

    threads.close()

    with pytest.raises(RuntimeError, match="shutdown"):
        first.submit(str)
    assert threads.pool().submit(str, 5).result() == "5"
    threads.close()


async def test_a_client_that_stalls_is_waited_for_by_the_loop(
    path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    watched: list[int] = []
    add_writer, remove_writer = loop.add_writer, loop.remove_writer

    def add(fd: int, callback: Callable[[], object]) -> None:
        watched.append(fd)
        add_writer(fd, callback)

    def remove(fd: int) -> bool:
        watched.remove(fd)
        return remove_writer(fd)

    server_side, client_side = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=server_side)
    monkeypatch.setattr(loop, "add_writer", add)
    monkeypatch.setattr(loop, "remove_writer", remove)
    ended: asyncio.Future[Exception | None] = loop.create_future()
    body = FileBody(os.open(path, os.O_RDONLY), 0, len(CONTENT))
    FileSend(HEAD, body, transport, pool, PATIENCE_S).start(ended.set_result, is_tls=False)
    await until(lambda: bool(watched))
    assert not ended.done()

    got = await loop.run_in_executor(None, _read_all, client_side, len(HEAD + CONTENT))

    assert got == HEAD + CONTENT
    assert await ended is None
    assert watched == [], "no writer stays behind"
    transport.close()
    client_side.close()


def _read_all(client: socket.socket, size_bytes: int) -> bytes:
    parts = []
    while size_bytes:
        parts.append(client.recv(65536))
        size_bytes -= len(parts[-1])
    return b"".join(parts)


async def test_a_stalled_client_that_takes_nothing_is_given_up(
    path: Path, pool: ThreadPoolExecutor
) -> None:
    loop = asyncio.get_running_loop()
    server_side, client_side = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=server_side)
    ended: asyncio.Future[Exception | None] = loop.create_future()
    body = FileBody(os.open(path, os.O_RDONLY), 0, len(CONTENT))

    FileSend(HEAD, body, transport, pool, 0.0).start(ended.set_result, is_tls=False)

    assert isinstance(await ended, TimeoutError)
    transport.close()
    client_side.close()
