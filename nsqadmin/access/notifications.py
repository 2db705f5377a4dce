"""Notifications: each change is posted to an HTTP endpoint, as the Go nsqadmin does.

Changes never wait for the endpoint: up to a thousand notifications do, each is tried three times,
and those that are dropped are counted.
"""

import asyncio
import base64
import binascii
import json
import logging
import socket
import time
from typing import Final

from nsqadmin.access.guard import is_https
from nsqadmin.cluster.upstream import describe_error
from nsqd.http.client import BadReplyError, ClientLimits, HttpClient, Url, UrlError
from nsqd.http.server import Request
from nsqd.runtime.event_loop import end_task, start_task

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
MAX_TRIES: Final = 3
RETRY_S: Final = 1.0


class Notifications:
    """Notifications that wait to be posted. `start` once, `close` once."""

    def __init__(self, endpoint: str) -> None:
        self._url = Url.parse(endpoint) if endpoint else None
        self._client = HttpClient(ClientLimits(max_body_bytes=1 << 16, max_idle_connections=0))
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._task: asyncio.Task[None] | None = None
        self.dropped_count = 0
        self.sent_count = 0

    @property
    def waiting_count(self) -> int:
        """How many wait to be posted."""
        return self._waiting.qsize()

    def start(self) -> None:
        """Begin to post."""
        if self._url is not None:
            self._task = start_task(self._run(), "notifications")

    async def close(self) -> None:
        """Stop; waiting notifications are lost."""
        if self._task is not None:
            await end_task(self._task)
        self._client.close()

    def note(
        self, request: Request, action: str, *, topic: str = "", channel: str = "", node: str = ""
    ) -> None:
        """Have a change posted."""
        if self._url is None:
            return
        members: dict[str, object] = {"action": action, "topic": topic}
        if channel:
            members["channel"] = channel
        if node:
            members["node"] = node
        members["timestamp"] = int(time.time())
        user = _find_basic_user(request)
        if user:
            members["user"] = user
        headers = request.headers
        scheme = "https" if is_https(request) else "http"
        host = headers.get(b"host", b"").decode("latin-1")
        members |= {
            "remote_ip": request.remote,
            "user_agent": headers.get(b"user-agent", b"").decode("latin-1"),
            "url": f"{scheme}://{host}{request.uri}",
            "via": socket.gethostname(),
        }
        try:
            self._waiting.put_nowait(json.dumps(members).encode())
        except asyncio.QueueFull:
            self._drop("too many wait")

    async def _run(self) -> None:
        while True:
            await self._post(await self._waiting.get())

    async def _post(self, body: bytes) -> None:
        assert self._url is not None
        reason = ""
        for attempt in range(MAX_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S * attempt)
            try:
                headers = {"Content-Type": "application/json"}
                reply = await self._client.request("POST", self._url, body=body, headers=headers)
            except (OSError, BadReplyError, UrlError) as error:
                reason = describe_error(error)
                continue
            if 200 <= reply.status < 300:
                self.sent_count += 1
                return
            reason = f"HTTP {reply.status}"
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        self.dropped_count += 1
        # The first, the second, the fourth: a dead endpoint must not fill the log.
        if self.dropped_count & (self.dropped_count - 1) == 0:
            logger.warning(
                "failed to notify of a change: %s dropped=%d", reason, self.dropped_count
            )


def _find_basic_user(request: Request) -> str:
    """Return the user of basic auth, which a proxy in front of us has checked."""
    scheme, _, value = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[0]
    except (binascii.Error, ValueError):
        return ""
