"""Cluster: HTTP calls of the commands to nsqd and nsqlookupd, to all nodes at once.

Changes go the way nsqadmin's do: find the nodes first, change every nsqlookupd, then every nsqd.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from nsqd.cli.output import CliError, ExitCode
from nsqd.cli.target import Node, Target
from nsqd.client.address import Address
from nsqd.client.discovery import lookupd_url
from nsqd.http.client import V1_ACCEPT, BadReplyError, ClientLimits, HttpClient, Url, UrlError

_MAX_BODY_BYTES = 256 << 20
# Names of topics and channels have no character that would be escaped.
_AGE = re.compile(
    r'^nsqd_channel_oldest_message_age_seconds\{channel="(?P<channel>[^"]*)",topic="(?P<topic>[^"]*)"\}'
    r" (?P<age>[0-9.e+-]+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reply of one server: its answer, or why there is none."""

    server: str
    answer: Any = None
    error: str | None = None
    status: int = 0
    is_untrusted: bool = False  # a certificate, theirs or ours, was refused
    date: str = ""  # the clock of the server, as HTTP has it


class Cluster:
    """All servers of a target; a context that closes its connections."""

    def __init__(
        self, target: Target, timeout_s: float, connect_timeout_s: float | None = None
    ) -> None:
        """Args: timeout_s: of each request."""
        self._target = target
        context = target.tls.make_context() if target.tls is not None else None
        limits = ClientLimits(
            connect_timeout_s=min(timeout_s, connect_timeout_s or timeout_s),
            request_timeout_s=timeout_s,
            max_body_bytes=_MAX_BODY_BYTES,
        )
        self._http = HttpClient(limits, ssl_context=context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    @property
    def lookupds(self) -> Sequence[str]:
        """The nsqlookupds."""
        return self._target.lookupds

    async def find_nodes(self, topic: str | None = None) -> list[Node]:
        """Return the nodes that were given, and those that the nsqlookupds know.

        Args:
            topic: only nodes that have this topic; nodes that were given are always among them.

        Raises:
            CliError: no nsqlookupd answers.
        """
        nodes = dict.fromkeys(self._target.nodes)
        target = "/nodes" if topic is None else f"/lookup?{urlencode({'topic': topic})}"
        outcomes = await self.ask_lookupds("GET", target)
        answers = [each for each in outcomes if each.error is None or each.status == 404]
        if outcomes and not answers:
            raise CliError(f"no nsqlookupd answers: {outcomes[0].error}")
        for outcome in answers:
            for producer in read_producers(outcome.answer):
                nodes[producer] = None
        return list(nodes)

    async def ask_lookupds(self, method: str, target: str) -> list[Outcome]:
        """Make a request to every nsqlookupd."""
        return await asyncio.gather(
            *(self._ask(method, lookupd, lookupd_url(lookupd, target)) for lookupd in self.lookupds)
        )

    async def ask(
        self, method: str, nodes: Iterable[Node], target: str, body: bytes = b""
    ) -> list[Outcome]:
        """Make a request to every node, in the order of the nodes."""
        return await asyncio.gather(*(self._ask_node(method, node, target, body) for node in nodes))

    async def find_stats(
        self,
        nodes: Sequence[Node],
        topic: str = "",
        channel: str = "",
        *,
        has_clients: bool = False,
    ) -> list[Outcome]:
        """Return /stats of every node."""
        query = {
            "format": "json",
            "include_mem": "false",
            "include_clients": "true" if has_clients else "false",
        }
        if topic:
            query["topic"] = topic
        if channel:
            query["channel"] = channel
        return await self.ask("GET", nodes, f"/stats?{urlencode(query)}")

    async def find_ages(self, nodes: Sequence[Node]) -> list[dict[tuple[str, str], float]]:
        """Return, for every node, the age in seconds of the oldest message of its channels.

        Only our nsqd tells; for another one there is nothing.
        """
        outcomes = await self.ask("GET", nodes, "/metrics")
        return [
            read_ages(each.answer) if each.error is None and isinstance(each.answer, str) else {}
            for each in outcomes
        ]

    async def _ask_node(self, method: str, node: Node, target: str, body: bytes) -> Outcome:
        if node.http is None:
            return Outcome(str(node), error="its HTTP address is not known")
        if "://" in node.http:
            url = Url.parse(node.http.rstrip("/") + target)
        else:
            address = Address.parse(node.http, 4151)
            scheme = "https" if self._target.tls is not None else "http"
            url = Url(scheme, address.host, address.port, target)
        return await self._ask(method, str(node), url, body)

    async def _ask(self, method: str, server: str, url: Url, body: bytes = b"") -> Outcome:
        headers = {"Accept": V1_ACCEPT}
        if self._target.token is not None:
            headers["Authorization"] = f"Bearer {self._target.token}"
        try:
            reply = await self._http.request(method, url, body=body, headers=headers)
            answer = _read(reply.body)
        except (OSError, BadReplyError, UrlError) as error:
            reason = str(getattr(error, "reason", "")) if isinstance(error, ssl.SSLError) else ""
            is_untrusted = "CERTIFICATE" in reason.upper()
            text = str(error) or type(error).__name__
            return Outcome(server, error=text, is_untrusted=is_untrusted)
        date = reply.headers.get(b"date", b"").decode("latin-1")
        if reply.status != HTTPStatus.OK:
            message = answer.get("message") if isinstance(answer, dict) else None
            text = str(message or f"status {reply.status}")
            return Outcome(server, answer, text, reply.status, date=date)
        return Outcome(server, answer, None, reply.status, date=date)


def check(outcomes: Sequence[Outcome], what: str) -> ExitCode:
    """Return the exit code of a change or question to several servers.

    Raises:
        CliError: all of them failed.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if not failed:
        return ExitCode.DONE
    if len(failed) < len(outcomes):
        return ExitCode.PARTIAL
    first = failed[0]
    text = f"{what}: {first.server}: {first.error}"
    if first.is_untrusted or first.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise CliError(text, ExitCode.FORBIDDEN)
    raise CliError(
        text, ExitCode.MISSING if first.status == HTTPStatus.NOT_FOUND else ExitCode.FAILED
    )


def read_ages(text: str) -> dict[tuple[str, str], float]:
    """Return the ages in /metrics by topic and channel."""
    found = _AGE.finditer(text)
    return {(each["topic"], each["channel"]): float(each["age"]) for each in found}


def lacks_feature(outcomes: Sequence[Outcome]) -> bool:
    """Say whether no node knows the call: they are Go's, and the call is ours."""
    return bool(outcomes) and all(
        each.status == HTTPStatus.NOT_FOUND and each.error == "NOT_FOUND" for each in outcomes
    )


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def read_producers(answer: Any) -> list[Node]:
    """Return the nodes in an answer of nsqlookupd, wrapped as before version 1.0 or not."""
    if not isinstance(answer, dict):
        return []
    wrapped = answer.get("data")
    found = (wrapped if isinstance(wrapped, dict) else answer).get("producers") or []
    return [
        Node(
            Address(str(each["broadcast_address"]), int(each["tcp_port"])),
            str(Address(str(each["broadcast_address"]), int(each["http_port"]))),
        )
        for each in found
    ]
