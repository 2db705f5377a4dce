"""FileBody and FileSend: a part of a file as the body of a reply.

On a plain connection a thread has the kernel copy the file to the socket (sendfile), a stint at a
time, so that neither a slow disk nor a large file holds up the loop; while the client takes no
more, the loop waits for its socket and no thread does. Under TLS a thread reads blocks, and the
transport sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_T = TypeVar("_T")

# A stint of a thread ends after so many bytes or seconds: other clients' files come next.
STINT_BYTES: Final = 16 * 1024 * 1024
STINT_S: Final = 0.05
# How long a thread waits for a client before it leaves that to the loop.
WAIT_MS: Final = 10
# Bytes that the kernel copies, or a thread reads, at a time.
BLOCK_BYTES: Final = 512 * 1024
# Under TLS, the blocks that the transport may hold unsent.
MAX_UNSENT_BYTES: Final = 2 * BLOCK_BYTES
MIN_PAUSE_S: Final = 0.0005
MAX_PAUSE_S: Final = 0.05
THREAD_COUNT: Final = 4


class FileBody:
    """A part of an open file; its last holder closes it."""

    __slots__ = ("fd", "offset", "size_bytes")

    def __init__(self, fd: int, offset: int, size_bytes: int) -> None:
        self.fd = fd
        self.offset = offset
        self.size_bytes = size_bytes

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the file of a reply that was never sent: its client has left."""
        self.close()


class FileThreads:
    """The threads of all connections of a server, made when they are first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="files")
        return self._pool

    def close(self) -> None:
        """Let the stints under way end by themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


class FileSend:
    """A reply with a file on its way to one client."""

    __slots__ = ("_body", "_head", "_pool", "_stall_s", "_task", "_transport")

    def __init__(
        self,
        head: bytes,
        body: FileBody,
        transport: asyncio.Transport,
        pool: ThreadPoolExecutor,
        stall_s: float,
    ) -> None:
        """Args:
        head: of the reply, which is sent first.
        stall_s: how long the client may take nothing.
        """
        self._head = head
        self._body = body
        self._transport = transport
        self._pool = pool
        self._stall_s = stall_s
        self._task: asyncio.Task[None] | None = None

    def start(self, on_end: Callable[[Exception | None], None], *, is_tls: bool) -> None:
        """Send it; `on_end` is called with the error if it could not be sent whole."""
        work = self._send_blocks() if is_tls else self._send_file()
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda task: self._end(task, on_end))

    def abandon(self) -> None:
        """Send no more: the client has left."""
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None], on_end: Callable[[Exception | None], None]) -> None:
        self._task = None
        self._body.close()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, OSError | TimeoutError):
            raise error
        on_end(error)

    async def _send_file(self) -> None:
        sock = self._transport.get_extra_info("socket")
        target = socket.socket(fileno=os.dup(sock.fileno()))
        try:
            target.setblocking(False)
            await self._wait_unsent(0)  # of the replies before
            stint = _Stint(self._head, self._body, target)
            while stint.is_left:
                is_stalled = await self._in_thread(stint.run)
                if is_stalled:
                    await self._wait_writable(target)
        finally:
            target.close()

    async def _send_blocks(self) -> None:
        self._transport.write(self._head)
        body = self._body
        sent_bytes = 0
        while sent_bytes < body.size_bytes:
            count = min(BLOCK_BYTES, body.size_bytes - sent_bytes)
            offset = body.offset + sent_bytes
            block = await self._in_thread(lambda: os.pread(body.fd, count, offset))  # noqa: B023
            if not block:
                raise OSError("the file is shorter than it was")
            self._transport.write(block)
            sent_bytes += len(block)
            await self._wait_unsent(MAX_UNSENT_BYTES)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Run blocking work; a caller that is cancelled waits for its end, as it has the files."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def _wait_unsent(self, max_bytes: int) -> None:
        """Wait until the transport holds no more than so many bytes.

        Raises:
            TimeoutError: the client takes nothing.
        """
        pause_s = MIN_PAUSE_S
        deadline = time.monotonic() + self._stall_s
        unsent_bytes = self._transport.get_write_buffer_size()
        while unsent_bytes > max_bytes:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            left_bytes = self._transport.get_write_buffer_size()
            if left_bytes < unsent_bytes:
                deadline = time.monotonic() + self._stall_s
            elif time.monotonic() >= deadline:
                raise TimeoutError("the client does not read")
            unsent_bytes = left_bytes

    async def _wait_writable(self, target: socket.socket) -> None:
        """Wait until the client takes more.

        Raises:
            TimeoutError: it does not.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(target.fileno(), ready.set)
        try:
            async with asyncio.timeout(self._stall_s):
                await ready.wait()
        finally:
            loop.remove_writer(target.fileno())


class _Stint:
    """Head and body on their way, as far as one thread gets at a time."""

    __slots__ = ("_body", "_head", "_sent_bytes", "_target")

    def __init__(self, head: bytes, body: FileBody, target: socket.socket) -> None:
        self._head = head
        self._body = body
        self._target = target
        self._sent_bytes = 0

    @property
    def is_left(self) -> bool:
        return bool(self._head) or self._sent_bytes < self._body.size_bytes

    def run(self) -> bool:
        """Send for a while; return whether the client takes no more for now.

        Raises:
            OSError: the connection is lost, or the file can't be read.
        """
        poll = select.poll()
        poll.register(self._target, select.POLLOUT)
        end = time.monotonic() + STINT_S
        goal_bytes = self._sent_bytes + STINT_BYTES
        while self.is_left and self._sent_bytes < goal_bytes and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                self._send_some()
                continue
            if not poll.poll(WAIT_MS):
                return True
        return False

    def _send_some(self) -> None:
        if self._head:
            # More follows: one packet for both.
            sent = self._target.send(self._head, socket.MSG_MORE if self._body.size_bytes else 0)
            self._head = self._head[sent:]
            return
        left_bytes = self._body.size_bytes - self._sent_bytes
        offset = self._body.offset + self._sent_bytes
        count = min(left_bytes, BLOCK_BYTES)
        sent = os.sendfile(self._target.fileno(), self._body.fd, offset, count)
        if not sent:
            raise OSError("the file is shorter than it was")
        self._sent_bytes += sent
