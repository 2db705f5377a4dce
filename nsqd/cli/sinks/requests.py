"""Requests: one message as an HTTP request, to the host whose turn it is.

A redirect is followed where the request stays what it was: 307 and 308, and any for GET. After a
301, 302 or 303 a POST would become a GET without the message, so that counts as a failure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote_plus, urljoin

from nsqd.cli.sinks.hostpool import HostPool
from nsqd.cli.sinks.timings import HostTimings
from nsqd.client import Message
from nsqd.http.client import BadReplyError, HttpClient, Reply, Url, UrlError

_MAX_REDIRECTS: Final = 10
_SAME_METHOD: Final = (307, 308)
_REDIRECTS: Final = (301, 302, 303, *_SAME_METHOD)
_PATIENT: Final = (429, 503)
_MAX_RETRY_AFTER_S: Final = 3600.0
_PLACEHOLDER: Final = re.compile(r"%s|\{body\}|\{id\}|\{topic\}")

Render = Callable[[str, Message], str]


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Addresses, method, body and headers of the requests, and the statuses that are a success."""

    urls: tuple[str, ...]
    method: str  # GET or POST
    render: Render
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    has_metadata: bool = True
    is_to_all: bool = False
    # Statuses that are a success; None for any 2xx.
    good_statuses: frozenset[int] | None = None
    # Whether another host is tried at once if one cannot be reached.
    has_failover: bool = True


class RequestError(Exception):
    """A message was not delivered.

    Attributes:
        status: of the reply, 0 without one.
        retry_after_s: when the server wants to be asked again, if it says so.
    """

    def __init__(self, text: str, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


class Requests:
    """Sends messages."""

    def __init__(
        self, plan: RequestPlan, http: HttpClient, pool: HostPool, timings: HostTimings
    ) -> None:
        """Args: pool: has the URLs as its hosts."""
        self._plan = plan
        self._http = http
        self._pool = pool
        self._timings = timings

    async def send(self, message: Message) -> None:
        """Send a message, and return when it was accepted.

        Raises:
            RequestError: it was not.
        """
        if self._plan.is_to_all:
            for url in self._plan.urls:
                await self._send_to(url, message)
            return
        tried: set[str] = set()
        while True:
            host = self._pool.take(tried)
            tried.add(host)
            try:
                await self._send_to(host, message)
            except RequestError as error:
                is_last = not self._plan.has_failover or len(tried) == len(self._pool)
                if error.status or is_last:
                    raise
            else:
                return

    async def _send_to(self, host: str, message: Message) -> None:
        start = time.monotonic()
        is_ok = False
        try:
            reply = await self._ask(self._plan.render(host, message), message)
            self._check(reply)
            is_ok = True
        except (OSError, BadReplyError, UrlError) as error:
            raise RequestError(f"{host}: {str(error) or type(error).__name__}") from error
        finally:
            seconds = time.monotonic() - start
            if not self._plan.is_to_all:
                self._pool.note(host, is_ok=is_ok, seconds=seconds)
        self._timings.add(host, seconds)

    async def _ask(self, address: str, message: Message) -> Reply:
        plan = self._plan
        body = message.body if plan.method == "POST" else b""
        headers = {**self._metadata(message), **plan.headers}
        if plan.method == "POST":
            headers = {"Content-Type": plan.content_type, **headers}
        url = Url.parse(address)
        for _ in range(_MAX_REDIRECTS + 1):
            reply = await self._http.request(
                plan.method, url, body=body, headers=headers, is_repeatable=True
            )
            goal = reply.headers.get(b"location")
            if reply.status not in _REDIRECTS or goal is None:
                return reply
            if plan.method == "POST" and reply.status not in _SAME_METHOD:
                return reply
            before, address = url, urljoin(address, goal.decode("latin-1"))
            url = Url.parse(address)
            if url.origin != before.origin:
                # Another server must not see the headers that the user gave for the first.
                headers = {k: v for k, v in headers.items() if k not in plan.headers}
        raise RequestError(f"more than {_MAX_REDIRECTS} redirects")

    def _metadata(self, message: Message) -> dict[str, str]:
        if not self._plan.has_metadata:
            return {}
        return {
            "X-NSQ-Id": message.id.decode("ascii", "replace"),
            "X-NSQ-Attempts": str(message.attempts),
            "X-NSQ-Timestamp": str(message.timestamp_ns),
            "X-NSQ-Topic": message.topic,
        }

    def _check(self, reply: Reply) -> None:
        good = self._plan.good_statuses
        if reply.status in good if good is not None else 200 <= reply.status < 300:
            return
        after_s = find_retry_after_s(reply) if reply.status in _PATIENT else None
        raise RequestError(f"got status code {reply.status}", reply.status, after_s)


def find_retry_after_s(reply: Reply, now: datetime | None = None) -> float | None:
    """Return the seconds of Retry-After; None if it says nothing usable."""
    text = reply.headers.get(b"retry-after", b"").decode("latin-1").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    left_s = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(left_s, 0.0), _MAX_RETRY_AFTER_S)


def render(template: str, message: Message) -> str:
    """Fill %s and {body}, {id}, {topic} in; everything is escaped for a query."""
    values = {"{id}": message.id.decode("ascii", "replace"), "{topic}": message.topic}

    def fill(match: re.Match[str]) -> str:
        return quote_plus(values.get(match[0], message.body))

    return _PLACEHOLDER.sub(fill, template)


def check_url(template: str) -> None:
    """Check that a URL can be requested once it is filled in.

    Raises:
        UrlError: it cannot.
    """
    Url.parse(_PLACEHOLDER.sub("x", template))


def render_as_go(template: str, message: Message) -> str:
    """Fill %s in; %% is a percent sign."""
    head, _, tail = template.partition("%s")
    return head.replace("%%", "%") + quote_plus(message.body) + tail.replace("%%", "%")


def keep_url(template: str, _message: Message) -> str:
    """Leave the URL as it is."""
    return template


def parse_headers(given: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Read headers, 'Name: value'.

    Raises:
        ValueError: one is none.
    """
    found = {}
    for text in given:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not (name and colon and value) or re.search(r"[\r\n]", text):
            raise ValueError(f"not a header, 'Name: value': {text!r}")
        found[name] = value
    return found
