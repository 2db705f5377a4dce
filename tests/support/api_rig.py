"""ApiRig: routes of nsqd's HTTP door on a broker in fake time, called without a socket."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from nsqd.config.options import Options
from nsqd.http.parser import HttpLimits, RequestParser
from nsqd.http.routes import HttpError, Request, Response, Router
from nsqd.runtime.door_counts import DoorCounts
from tests.support.broker_rig import BrokerRig

MAX_TURNS = 200


class Routes(Protocol):
    """Routes that can be added to a router."""

    def add_to(self, router: Router) -> None:
        """Add them."""


class ApiRig(BrokerRig):
    """A broker, and a node with as much as routes need of one."""

    def __init__(self, data_path: Path, **settings: Any) -> None:
        super().__init__(data_path, **settings)
        self.counts = DoorCounts()
        self.persisted: list[str] = []
        self.is_persist_stuck = False  # nsqd.dat can't be written
        self.router = Router()
        self.node: Any = SimpleNamespace(
            broker=self.broker,
            connections=set(),
            options=Options(),
            persist=self._persist,
            doors={"http": self.counts},
        )

    async def _persist(self, topic_name: str) -> None:
        self.persisted.append(topic_name)
        if self.is_persist_stuck:
            await asyncio.Event().wait()

    def parse(self, method: str, target: str, body: bytes = b"") -> Request:
        """Return the request of these bytes."""
        head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        parser = RequestParser(self.router, HttpLimits(), "127.0.0.1:5", is_tls=False, before=None)
        parser.feed(head.encode() + body)
        [request] = parser.ready
        parser.close()
        return request

    def begin(self, method: str, target: str, body: bytes = b"") -> "asyncio.Future[Response]":
        """Call a route."""
        request = self.parse(method, target, body)

        async def call() -> Response:
            reply = request.route.handler(request)
            return reply if isinstance(reply, Response) else await reply

        return asyncio.ensure_future(call())

    async def end(self, call: "asyncio.Future[Response]") -> tuple[int, Any]:
        """Let a call end in fake time; return its status, and its JSON or text."""
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if call.done():
                break
            self.advance(0.1)
        try:
            reply = call.result()
        except HttpError as error:
            return error.status, error.code
        body = b"".join([reply.body, *reply.more])
        is_json = reply.content_type.startswith("application/json")
        return reply.status, json.loads(body) if is_json and body else body.decode()

    async def call(self, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        """Call a route and let it end."""
        return await self.end(self.begin(method, target, body))
