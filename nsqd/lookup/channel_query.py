"""ChannelQuery: ask an nsqlookupd over HTTP which channels a topic has in the cluster."""

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote_plus

from nsqd.http.client import BadReplyError, HttpClient, Url, UrlError
from nsqd.protocol.names import is_ephemeral, is_valid_channel_name


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
