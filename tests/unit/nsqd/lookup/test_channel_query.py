from typing import cast

import pytest

from nsqd.http.client import HttpClient, Reply, Url
from nsqd.lookup.channel_query import ChannelQuery, ChannelQueryError, usable_channels

ADDRESS = ("::1", 4161)


class FakeClient:
    """Answers every request with one reply."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.asked: list[tuple[str, Url]] = []
        self._reply = Reply(status, {}, body)

    async def request_v1(self, method: str, url: Url) -> Reply:
        self.asked.append((method, url))
        return self._reply


async def fetch(client: FakeClient, address: tuple[str, int] = ADDRESS) -> list[str]:
    return await ChannelQuery(cast(HttpClient, client)).fetch(address, "t#ephemeral")


async def test_the_question_and_its_answer() -> None:
    client = FakeClient(b'{"channels":["a",1,null,"b c"]}')

    assert await fetch(client) == ["a", "b c"]

    assert client.asked == [("GET", Url("http", *ADDRESS, "/channels?topic=t%23ephemeral"))]


@pytest.mark.parametrize("body", [b"{}", b'{"channels":null}', b'{"channels":[]}'])
async def test_a_topic_without_channels(body: bytes) -> None:
    assert await fetch(FakeClient(body)) == []


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{}", 500, "status 500"),
        (b"{}", 302, "status 302"),
        (b"x", 200, "not JSON"),
        (b"[]", 200, "not a JSON object"),
        (b'{"channels":"a"}', 200, "not a list"),
    ],
)
async def test_an_answer_that_is_of_no_use(body: bytes, status: int, text: str) -> None:
    with pytest.raises(ChannelQueryError, match=text):
        await fetch(FakeClient(body, status))


@pytest.mark.parametrize("host", ["", "a b", "127.0.0.1\r\nX: y", "x" * 300])
async def test_an_address_that_cannot_be_asked(host: str) -> None:
    client = FakeClient(b"{}")

    with pytest.raises(ChannelQueryError, match="bad address"):
        await fetch(client, (host, 4161))

    assert client.asked == []


def test_channels_are_made_of_valid_lasting_names_only() -> None:  # N-9
    names = ["two", "one", "gone#ephemeral", "bad name", "", "x" * 65, "one", "#ephemeral", "a/b"]

    assert usable_channels(names) == ["one", "two"]
