"""LookupConsumer: follows a topic over the cluster through nsqlookupd, whatever is up or down."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Self

from tests.support.cluster import Lookupd
from tests.support.daemon_process import HOST
from tests.support.v2_client import MESSAGE, ConnectionEndedError, Message, V2Client

POLL_S = 0.1


class LookupConsumer:
    """Asks all nsqlookupds all the time and is subscribed to each producer that they know."""

    def __init__(self, lookupds: Sequence[Lookupd], topic: str, channel: str) -> None:
        self.bodies: Counter[str] = Counter()
        self._lookupds = lookupds
        self._topic = topic
        self._channel = channel
        self._connections: dict[int, asyncio.Task[None]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._polling = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._polling is not None
        tasks = [self._polling, *self._connections.values()]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    @property
    def ports(self) -> set[int]:
        """The producers it is connected to."""
        return {port for port, task in self._connections.items() if not task.done()}

    async def _poll(self) -> None:
        while True:
            for lookupd in self._lookupds:
                # It may be down, or go down in mid-sentence.
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        self._connect(await lookupd.producers(self._topic))
            await asyncio.sleep(POLL_S)

    def _connect(self, ports: set[int]) -> None:
        for port in ports - self.ports:
            self._connections[port] = asyncio.create_task(self._consume(port))

    async def _consume(self, port: int) -> None:
        with contextlib.suppress(OSError, ConnectionEndedError):
            client = await V2Client.connect((HOST, port))
            try:
                await client.subscribe(self._topic, self._channel, rdy=50)
                while True:
                    kind, data = await client.read_frame(60.0)
                    if kind == MESSAGE:
                        message = Message.decode(data)
                        self.bodies[message.body.decode()] += 1
                        client.fin(message)
                    else:
                        client.nop()
            finally:
                await client.close()
