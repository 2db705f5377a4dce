"""RunningDaemon: nsqd in this process and on this loop, with the clients that a test opens."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nsqd.config.options import Options
from nsqd.daemon import Daemon
from tests.support.http_client import HttpClient
from tests.support.v2_client import MAGIC, Address, V2Client
from tests.support.waiting import PATIENCE_S

POLL_S = 0.01
ANY_PORT = "127.0.0.1:0"


class RunningDaemon:
    """One nsqd; what escapes a callback in it fails the test at `stop`."""

    def __init__(self, data_path: Path, **options: Any) -> None:
        """Args: options: fields of Options; what is not given has its default, on port 0."""
        given = {"tcp_address": ANY_PORT, "http_address": ANY_PORT, "https_address": ""} | options
        self.options = Options(data_path=str(data_path), **given)
        self.daemon = Daemon(self.options)
        self._clients: list[V2Client] = []
        self._is_running = False

    async def start(self) -> None:
        """Start it; may fail as the daemon does."""
        try:
            await self.daemon.start()
        except BaseException:
            await self.daemon.close()
            raise
        self._is_running = True

    async def stop(self) -> None:
        """Close the clients and stop it, as SIGTERM does; the exit code must be 0."""
        if self._is_running:
            await self.shut_down()
        for client in self._clients:
            await client.close()
        self._clients.clear()

    async def shut_down(self) -> None:
        """Stop it under the eyes of its clients."""
        self._is_running = False
        self.daemon.ending.request()
        await asyncio.wait_for(self.daemon.close(), PATIENCE_S)
        assert self.daemon.ending.exit_code == 0, "something went wrong inside, see the log"

    # --- clients

    @property
    def address(self) -> Address:
        """Where clients connect to."""
        if self.daemon.tcp_port < 0:
            return self.options.tcp_address
        return "127.0.0.1", self.daemon.tcp_port

    async def connect(self, *, magic: bytes = MAGIC) -> V2Client:
        """Open a connection that `stop` will close."""
        return self.adopt(await V2Client.connect(self.address, magic=magic))

    def adopt(self, client: V2Client) -> V2Client:
        """Have `stop` close this client too."""
        self._clients.append(client)
        return client

    async def consumer(
        self, topic: str, channel: str = "ch", *, rdy: int = 0, **identify: object
    ) -> V2Client:
        """Open a connection that is subscribed, after an IDENTIFY if there is anything to say."""
        client = await self.connect()
        if identify:
            await client.identify(**identify)
        await client.subscribe(topic, channel, rdy=rdy)
        return client

    async def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish over a connection of its own."""
        client = await V2Client.connect(self.address)
        await client.publish(topic, *bodies)
        await client.close()

    # --- HTTP

    async def request(self, method: str, target: str) -> tuple[int, bytes]:
        """Make one HTTP request; return the status and the body."""
        async with await HttpClient.connect(("127.0.0.1", self.daemon.http_port)) as http:
            reply = await http.request(method, target)
        return reply.status, reply.body

    async def post(self, target: str) -> None:
        """POST what must succeed."""
        status, body = await self.request("POST", target)
        assert status == 200, (status, body)

    async def stats(self) -> dict[str, Any]:
        """Return /stats."""
        status, body = await self.request("GET", "/stats?format=json")
        assert status == 200, (status, body)
        stats: dict[str, Any] = json.loads(body)
        return stats

    async def find_topic(self, topic: str) -> dict[str, Any] | None:
        """Return what /stats says of a topic, None if there is no such topic."""
        return _find((await self.stats())["topics"], topic_name=topic)

    async def topic(self, topic: str) -> dict[str, Any]:
        """Return what /stats says of a topic."""
        found = await self.find_topic(topic)
        assert found is not None, f"no topic {topic}"
        return found

    async def find_channel(self, topic: str, channel: str = "ch") -> dict[str, Any] | None:
        """Return what /stats says of a channel, None if there is no such channel."""
        found = await self.find_topic(topic)
        return None if found is None else _find(found["channels"], channel_name=channel)

    async def channel(self, topic: str, channel: str = "ch") -> dict[str, Any]:
        """Return what /stats says of a channel."""
        found = await self.find_channel(topic, channel)
        assert found is not None, f"no channel {topic}/{channel}"
        return found

    async def wait_for_channel(
        self, topic: str, channel: str = "ch", **wanted: object
    ) -> dict[str, Any]:
        """Wait until the channel's figures are these."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            found = await self.channel(topic, channel)
            if all(found.get(key) == value for key, value in wanted.items()):
                return found
            assert asyncio.get_running_loop().time() < deadline, (wanted, found)
            await asyncio.sleep(POLL_S)

    async def wait_for_no_channel(self, topic: str, channel: str) -> None:
        """Wait until there is no such channel."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await self.find_channel(topic, channel) is None:
                    return
                await asyncio.sleep(POLL_S)

    async def client_stats(self, topic: str, channel: str = "ch") -> dict[str, Any]:
        """Return what /stats says of a channel's only client."""
        [client] = (await self.channel(topic, channel))["clients"]
        found: dict[str, Any] = client
        return found


class StartNsqd(Protocol):
    """Starts nsqd with these options; with `data_path`, on data that is there."""

    async def __call__(self, *, data_path: Path | None = None, **options: Any) -> RunningDaemon: ...


def _find(entries: list[dict[str, Any]] | None, **key: str) -> dict[str, Any] | None:
    wanted: Mapping[str, object] = key
    for entry in entries or []:
        if wanted.items() <= entry.items():
            return entry
    return None
