"""Discovery: ask all nsqlookupds at once, again and again, where nsqd is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import quote_plus

from nsqd.client.address import DEFAULT_LOOKUPD_PORT, Address
from nsqd.client.errors import DiscoveryError
from nsqd.client.stats import Observer
from nsqd.http.client import BadReplyError, ClientLimits, HttpClient, Url, UrlError

_logger = logging.getLogger("nsqd.client")

_JITTER: Final = 0.3
# After a lost connection the answers may be out of date: asked again, but no more often than this.
_MIN_INTERVAL_S: Final = 1.0
_MAX_ANSWER_BYTES: Final = 16 << 20
# An nsqd that no nsqlookupd has told of for so many intervals is gone.
_MISSED_INTERVALS: Final = 3

# Gets the nsqds of a poll, and those that are gone since the last one.
Found = Callable[[set[Address], set[Address]], None]


class Discovery:
    """The nsqds of a topic, or all of them, as the nsqlookupds know them."""

    def __init__(
        self,
        lookupds: Sequence[str],
        topic: str | None,
        *,
        interval_s: float = 60.0,
        timeout_s: float = 5.0,
        auth_secret: str | bytes | None = None,
        sends_secret: bool | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Prepare; `run` and `ask` ask.

        Args:
            topic: None for every nsqd.
            auth_secret: of the AUTH of nsqd.
            sends_secret: whether nsqlookupds get it as a token; None for those with https.

        Raises:
            ValueError: an address is none, or the secret can't be a token.
        """
        path = "/nodes" if topic is None else f"/lookup?topic={quote_plus(topic)}"
        self._urls = [lookupd_url(lookupd, path) for lookupd in lookupds]
        self._interval_s = interval_s
        self._headers = [make_headers(url, auth_secret, is_sent=sends_secret) for url in self._urls]
        self._observer = observer or Observer()
        self._hurry = asyncio.Event()
        # The nsqds that were told of, and since when none of the nsqlookupds knows them.
        self._missing_since: dict[Address, float | None] = {}
        limits = ClientLimits(request_timeout_s=timeout_s, max_body_bytes=_MAX_ANSWER_BYTES)
        self._http = HttpClient(limits)

    def hurry(self) -> None:
        """Ask again soon: a connection was lost."""
        self._hurry.set()

    async def run(self, found: Found) -> None:
        """Ask until cancelled; call `found` after each poll that had an answer.

        An nsqd is gone when no poll has told of it for three intervals. It is not the polls that
        count, as lost connections hurry them: an nsqd that restarts would be forgotten in seconds.
        """
        while True:
            try:
                answers = await self._ask_all()
                addresses = self._note(answers)
                found(addresses, self._find_gone(addresses, is_complete=None not in answers))
            except DiscoveryError as error:
                _logger.warning("discovery failed error=%s", error)
                self._hurry.set()
            await asyncio.sleep(_MIN_INTERVAL_S)
            jitter = random.uniform(1 - _JITTER, 1 + _JITTER)
            try:
                async with asyncio.timeout(self._interval_s * jitter):
                    await self._hurry.wait()
            except TimeoutError:
                pass  # The usual case: nothing has happened for the whole interval.
            self._hurry.clear()

    async def ask(self) -> set[Address]:
        """Ask every nsqlookupd; return the union of the answers.

        Raises:
            DiscoveryError: none has answered.
        """
        return self._note(await self._ask_all())

    def close(self) -> None:
        """Close the connections to the nsqlookupds."""
        self._http.close()

    async def _ask_all(self) -> list[set[Address] | None]:
        """Return the answers; None for an nsqlookupd that gives none."""
        answers = await asyncio.gather(*map(self._ask_one, self._urls, self._headers))
        if all(answer is None for answer in answers):
            raise DiscoveryError(f"none of {len(self._urls)} nsqlookupds gives a usable answer")
        return answers

    def _note(self, answers: list[set[Address] | None]) -> set[Address]:
        addresses = set[Address]().union(*filter(None, answers))
        self._missing_since.update(dict.fromkeys(addresses))
        return addresses

    def _find_gone(self, addresses: set[Address], *, is_complete: bool) -> set[Address]:
        """Return the nsqds that are gone, and forget them.

        Args:
            is_complete: whether each nsqlookupd has answered. One that has not may be the only one
                that knows an nsqd, so the time begins anew.
        """
        now = asyncio.get_running_loop().time()
        missing_since = self._missing_since
        gone = set()
        for address in missing_since.keys() - addresses:
            since = missing_since[address]
            if not is_complete:
                missing_since[address] = None
            elif since is None:
                missing_since[address] = now
            elif now - since >= _MISSED_INTERVALS * self._interval_s:
                gone.add(address)
                del missing_since[address]
        return gone

    async def _ask_one(self, url: Url, headers: dict[str, str]) -> set[Address] | None:
        try:
            reply = await self._http.request("GET", url, headers=headers)
            if reply.status == HTTPStatus.NOT_FOUND:
                return set()  # no nsqd has the topic yet
            if reply.status != HTTPStatus.OK:
                raise DiscoveryError(f"status {reply.status}")
            return read_producers(reply.json())
        except (OSError, BadReplyError, UrlError, DiscoveryError) as error:
            self._observer.discovery_failed(url.authority, error)
            _logger.warning("nsqlookupd failed address=%s error=%s", url.authority, error)
            return None


def lookupd_url(lookupd: str, target: str) -> Url:
    """Return the URL of a request to an nsqlookupd, given as host:port or as a URL.

    Raises:
        ValueError: it is neither.
    """
    if "://" in lookupd:
        return Url.parse(lookupd.rstrip("/") + target)
    address = Address.parse(lookupd, DEFAULT_LOOKUPD_PORT)
    return Url("http", address.host, address.port, target)


def make_headers(
    url: Url, auth_secret: str | bytes | None, *, is_sent: bool | None
) -> dict[str, str]:
    """Return the headers of a request: the secret as a token, where it may be sent.

    go-nsq sends it to every nsqlookupd, in the clear; here that has to be asked for.

    Raises:
        ValueError: the secret has a line break, which ends a header.
    """
    if not auth_secret or not (url.scheme == "https" if is_sent is None else is_sent):
        return {}
    secret = auth_secret.encode() if isinstance(auth_secret, str) else auth_secret
    if b"\r" in secret or b"\n" in secret:
        raise ValueError("an auth_secret with a line break can't be sent to nsqlookupd")
    return {"Authorization": "Bearer " + secret.decode("latin-1")}  # the same bytes as in AUTH


def read_producers(answer: object) -> set[Address]:
    """Return the TCP addresses of an answer to /lookup or /nodes.

    Raises:
        DiscoveryError: it is none.
    """
    if not isinstance(answer, dict):
        raise DiscoveryError("not the answer of an nsqlookupd")
    try:
        # Before version 1.0 the answer was wrapped.
        wrapped = answer.get("data")
        fields = wrapped if isinstance(wrapped, dict) else answer
        producers = fields.get("producers") or []
        return {
            Address(str(each["broadcast_address"]), int(each["tcp_port"])) for each in producers
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DiscoveryError("not the answer of an nsqlookupd") from error
