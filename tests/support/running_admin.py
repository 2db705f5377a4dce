"""RunningAdmin: nsqadmin in this process and on this loop, and a client for it."""

import asyncio
import json
from typing import Any

from nsqadmin.daemon import Daemon
from nsqadmin.options import Options, check_options
from tests.support.http_client import Reply, fetch
from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"


class RunningAdmin:
    """One nsqadmin; what escapes a callback in it fails the test at `stop`."""

    def __init__(self, **options: Any) -> None:
        """Args: options: fields of Options; what is not given has its default, on port 0."""
        given: dict[str, Any] = {"http_address": f"{HOST}:0", "poll_interval_s": 0.5} | options
        self.options = Options(**given)
        check_options(self.options)
        self.daemon = Daemon(self.options)
        self._is_running = False

    async def start(self) -> None:
        """Start it and wait for its first round."""
        await self.daemon.start()
        self._is_running = True
        await self.round()

    async def stop(self) -> None:
        """Stop it, as SIGTERM does; the exit code must be 0."""
        if self._is_running:
            self._is_running = False
            self.daemon.ending.request()
            await asyncio.wait_for(self.daemon.close(), PATIENCE_S)
            assert self.daemon.ending.exit_code == 0, "something went wrong inside, see the log"

    async def round(self) -> None:
        """Wait for a round that begins now."""
        collector = self.daemon.collector
        # One that is under way may have asked before.
        for _ in range(2):
            seq = collector.view.seq
            collector.hurry()
            while collector.view.seq == seq:  # noqa: ASYNC110 - a test looks from outside
                await asyncio.sleep(0.005)

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Make one request; a body that is no bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        address = HOST, self.daemon.http_port
        return await asyncio.to_thread(fetch, address, method, path, raw, headers=headers)

    async def get(self, path: str, **headers: str) -> Any:
        """GET JSON that must be there."""
        reply = await self.request("GET", path, headers=headers)
        assert reply.status == 200, (path, reply)
        return reply.json()

    async def act(self, action: str, *targets: dict[str, str], **more: object) -> dict[str, Any]:
        """Do something and wait until it is done; return how it went."""
        wanted = {"action": action, "targets": list(targets), **more}
        reply = await self.request("POST", "/api/v2/actions", wanted)
        assert reply.status == 202, reply
        while True:
            found: dict[str, Any] = await self.get(f"/api/v2/actions/{reply.json()['id']}")
            if found["state"] == "done":
                return found
            await asyncio.sleep(0.01)
