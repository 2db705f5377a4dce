"""/topic/peek and /channel/peek: how messages are shown, and which."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nsqd.api.peek import PeekRoutes, encode_message, format_message
from nsqd.broker.limits.causes import Cause
from nsqd.broker.peek import PeekedMessage, Place
from nsqd.config.options import Options
from tests.support.api_rig import ApiRig

ID = b"0123456789abcdef"
CAUSE = Cause("t", "c", "ttl", 7, b"fedcba9876543210", 5)


def message(body: bytes = b"hi", **members: Any) -> PeekedMessage:
    values: dict[str, Any] = {
        "place": Place.MEMORY,
        "deadline": None,
        "timestamp_ns": 1_000_000_002,
    }
    values |= members
    return PeekedMessage(ID, values["timestamp_ns"], 3, body, values["place"], values["deadline"])


@pytest.mark.parametrize(
    ("timestamp_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1_000_000_002, "1970-01-01T00:00:01.000000002Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
    ],
)
def test_any_timestamp_has_a_text(timestamp_ns: int, text: str) -> None:
    line = format_message(message(timestamp_ns=timestamp_ns), 0.0)

    assert line == f'{Place.MEMORY.value:<20} 0123456789abcdef {text} attempts: 3 size: 2 "hi"\n'


@pytest.mark.parametrize(
    ("deadline", "left_ms"), [(5.0, 0), (5.5, 500), (5.0004, 0), (5.0006, 1), (4.0, 0)]
)
@pytest.mark.parametrize("place", [Place.IN_FLIGHT, Place.DEFERRED])
def test_the_time_that_is_left(deadline: float, left_ms: int, place: Place) -> None:
    peeked = message(place=place, deadline=deadline)

    key = "timeout_ms" if place is Place.IN_FLIGHT else "due_ms"
    assert encode_message(peeked, 5.0)[key] == left_ms
    assert format_message(peeked, 5.0).startswith(f"{place.value} in {left_ms}ms")


@pytest.mark.parametrize("channel", ["c", ""])
def test_a_dead_letter_shows_its_origin(channel: str) -> None:
    cause = CAUSE._replace(channel_name=channel)

    assert encode_message(message(), 0.0, cause)["origin"] == {
        "topic": "t",
        "channel": channel,
        "reason": "ttl",
        "attempts": 7,
        "id": "fedcba9876543210",
        "timestamp": 5,
    }
    name = "t:c" if channel else "t"
    assert f' size: 2 from: {name} ttl: 7 "hi"' in format_message(message(), 0.0, cause)


@pytest.mark.parametrize(
    ("body", "members", "text"),
    [
        (b"\xc3\xa9", {"body": "\u00e9"}, '"\u00e9"'),
        (b"\xff", {"body_base64": "/w=="}, '"\\\\xff"'),
        (b"", {"body": ""}, '""'),
        (b'"\n', {"body": '"\n'}, '"\\"\\n"'),
    ],
)
def test_any_body_is_shown(body: bytes, members: dict[str, str], text: str) -> None:
    assert encode_message(message(body), 0.0) == {
        "id": "0123456789abcdef",
        "timestamp": 1_000_000_002,
        "attempts": 3,
        "size": len(body),
        "where": Place.MEMORY.value,
        **members,
    }
    assert format_message(message(body), 0.0).endswith(f" size: {len(body)} {text}\n")


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", 10),
        ("&count=1", 1),
        ("&count=100", 12),
        ("&count=0", (400, "INVALID_ARG_COUNT")),
        ("&count=101", (400, "INVALID_ARG_COUNT")),
        ("&count=x", (400, "INVALID_ARG_COUNT")),
        ("&where=x", (400, "INVALID_ARG_WHERE")),
        (f"&where={Place.MEMORY.value}", 10),
        (f"&where={Place.DEFERRED.value}", 0),
        (f"&where={Place.DEFERRED.value},{Place.MEMORY.value}", 10),
    ],
)
@pytest.mark.parametrize("noun", ["topic", "channel"])
async def test_so_many_are_shown(tmp_path: Path, query: str, shown: Any, noun: str) -> None:
    rig = ApiRig(tmp_path)
    PeekRoutes(rig.node).add_to(rig.router)
    if noun == "channel":
        rig.channel()
    rig.publish(*(b"%d" % number for number in range(12)))
    target = f"/{noun}/peek?topic=t&channel=c"

    answer = await rig.call("GET", f"{target}&format=json{query}")
    if not isinstance(shown, int):
        assert answer == shown
        return
    names = {"topic": "t", "channel": "c"} if noun == "channel" else {"topic": "t"}
    status, document = answer
    assert [each.pop("body") for each in document["messages"]] == [str(n) for n in range(shown)]
    assert (status, {key: document[key] for key in names}) == (200, names)
    text = (await rig.call("GET", f"{target}{query}"))[1]
    assert text.count("\n") == shown


@pytest.mark.parametrize("noun", ["topic", "channel"])
async def test_a_disk_that_cannot_be_read_is_an_error_of_the_server(
    tmp_path: Path, noun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ApiRig(tmp_path, mem_queue_size=0)
    PeekRoutes(rig.node).add_to(rig.router)
    if noun == "channel":
        rig.channel()
    rig.publish(*[b"x" * 2000] * 600)  # as many as are kept in memory
    rig.publish(b"x")

    def refuse(_fd: int, _size: int, _offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", refuse)
    answer = await rig.call("GET", f"/{noun}/peek?topic=t&channel=c&order=newest")

    assert answer == (500, "INTERNAL_ERROR")


async def test_peeks_need_a_token_where_clients_need_to_auth(tmp_path: Path) -> None:
    rig = ApiRig(tmp_path)
    rig.node.options = Options(auth_http_addresses=("http://a",))
    PeekRoutes(rig.node).add_to(rig.router)
    rig.channel()

    for noun in ("topic", "channel"):
        answer = await rig.call("GET", f"/{noun}/peek?topic=t&channel=c")
        assert answer == (403, "HTTP_AUTH_TOKEN_FILE_REQUIRED")
