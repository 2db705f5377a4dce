"""ChannelQuery: ask an nsqlookupd over HTTP which channels a topic has in the cluster.

PeerQuestions: all such questions to one nsqlookupd, of which some are under way at a time.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote_plus

from nsqd.http.client import BadReplyError, HttpClient, Url, UrlError
from nsqd.lookup.peer import LookupPeer
from nsqd.protocol.names import is_ephemeral, is_valid_channel_name

# Questions under way to one nsqlookupd; further new topics wait their turn.
MAX_QUERIES_PER_PEER = 16


class ChannelQueryError(Exception):
    """The nsqlookupd has no address to ask at, or its answer is no list of channels."""


@dataclass(frozen=True, slots=True)
class ChannelQuery:
    """Ask any nsqlookupd for the channels of a topic."""

    client: HttpClient

    async def fetch(self, address: tuple[str, int], topic: str) -> list[str]:
        """Return the names of the topic's channels, unchecked.

        Raises:
            OSError: the nsqlookupd cannot be reached, or not in time.
            ChannelQueryError: its answer is of no use.
        """
        host, port = address
        try:
            # The address comes from the nsqlookupd itself; Url checks that it is fit for a header.
            url = Url("http", host, port, f"/channels?topic={quote_plus(topic)}")
            reply = await self.client.request_v1("GET", url)
            if reply.status != HTTPStatus.OK:
                raise ChannelQueryError(f"status {reply.status}")
            return _read_channels(reply.json())
        except UrlError as error:
            raise ChannelQueryError(f"bad address {host[:200]!r} - {error}") from error
        except BadReplyError as error:
            raise ChannelQueryError(str(error)) from error


class PeerQuestions:
    """Ask one nsqlookupd. A question waits its turn for as long as others are answered."""

    def __init__(self, peer: LookupPeer, query: ChannelQuery, timeout_s: float) -> None:
        """Args: timeout_s: the time without any answer after which questions fail."""
        self.peer = peer
        self._query = query
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(MAX_QUERIES_PER_PEER)
        self._last_answer_at = -math.inf  # loop clock

    async def ask(self, topic_name: str) -> list[str]:
        """Return the names of the topic's channels, unchecked.

        Raises:
            OSError: the nsqlookupd cannot be reached; TimeoutError: it does not answer.
            ChannelQueryError: it is not connected, or its answer is of no use.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        # A daemon that was just started is asked too soon: let it try to connect first.
        await self.peer.has_tried.wait()
        await self._wait_for_turn(asked_at)
        try:
            if self.peer.http_address is None:
                raise ChannelQueryError("not connected")
            async with asyncio.timeout_at(self._deadline(asked_at)):
                names = await self._query.fetch(self.peer.http_address, topic_name)
            self._last_answer_at = loop.time()
            return names
        finally:
            self._turns.release()

    async def _wait_for_turn(self, asked_at: float) -> None:
        """Stand in line while it moves, however long it is.

        Raises:
            TimeoutError: the questions in front are no longer answered.
        """
        loop = asyncio.get_running_loop()
        while (deadline := self._deadline(asked_at)) > loop.time():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._turns.acquire()
                    return
        raise TimeoutError

    def _deadline(self, asked_at: float) -> float:
        return max(asked_at, self._last_answer_at) + self._timeout_s


def usable_channels(names: Iterable[str]) -> list[str]:
    """Return the names to make channels of, sorted.

    Ephemeral channels are made by their consumers alone. The Go nsqd makes channels of all other
    names, even of those that no client could subscribe to.
    """
    return sorted(
        {name for name in names if is_valid_channel_name(name) and not is_ephemeral(name)}
    )


def _read_channels(answer: object) -> list[str]:
    if not isinstance(answer, dict):
        raise BadReplyError("reply is not a JSON object")
    channels = answer.get("channels")
    if channels is None:
        return []
    if not isinstance(channels, list):
        raise BadReplyError("channels are not a list")
    return [name for name in channels if isinstance(name, str)]
