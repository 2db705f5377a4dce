"""TcpProxy: a network between two parties that can be delayed, stalled, cut and healed.

It runs on the test's own loop and forwards bytes both ways. A *stalled* network loses nothing and
says nothing: bytes wait, and new connections are accepted and wait too. A *cut* one resets what is
there and what comes.
"""

import asyncio
from typing import Self

HOST = "127.0.0.1"
_READ_BYTES = 1 << 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TcpProxy:
    """One port that stands for another."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.delay_s = 0.0  # of each piece of data, each way
        self.connection_count = 0  # since the beginning
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._end_connections()

    @property
    def address(self) -> str:
        """The address to use instead of the target's."""
        return f"{HOST}:{self.port}"

    def stall(self) -> None:
        """Let nothing through."""
        self._flows.clear()

    async def cut(self) -> None:
        """Reset all connections, those to come too."""
        self._is_cut = True
        await self._end_connections()

    def heal(self) -> None:
        """Let everything through again; what was stalled comes late."""
        self._is_cut = False
        self._flows.set()

    async def _end_connections(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self.connection_count += 1
        task = asyncio.get_running_loop().create_task(self._carry((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, near: Streams) -> None:
        """Forward between the two ends until one of them is gone."""
        far: Streams | None = None
        try:
            await self._flows.wait()
            far = await asyncio.open_connection(HOST, self.target_port)
            there = asyncio.create_task(self._forward(near[0], far[1]))
            back = asyncio.create_task(self._forward(far[0], near[1]))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.wait((there, back))
        except OSError:
            return
        finally:
            near[1].transport.abort()
            if far is not None:
                far[1].transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                await asyncio.sleep(self.delay_s)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return
