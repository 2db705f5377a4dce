"""Whatever is asked of the API, the answer is its own: never a 500, a hang or a traceback."""

import random

import pytest

from tests.support.http_client import HttpClient
from tests.support.running_daemon import StartNsqd

REQUESTS = 400
EXPECTED = (200, 301, 307, 400, 404, 405, 413)
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH")
PATHS = (
    *("/", "/ping", "/ready", "/info", "/stats", "/metrics", "/pub", "/mpub", "/put", "/mput"),
    *(f"/{noun}/{verb}" for noun in ("topic", "channel") for verb in
      ("create", "delete", "empty", "pause", "unpause", "peek")),
    *("/empty_topic", "/delete_channel", "/config/log_level", "/config/nsqlookupd_tcp_addresses"),
    *("/config/id", "/config/", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine"),
    *("/debug/pprof/block", "/debug/setblockrate", "/debug/freememory", "/%2e%2e/stats"),
)  # fmt: skip
NAMES = (
    *("topic", "channel", "format", "count", "where", "binary", "defer", "rate", "x"),
    *("include_clients", "include_mem"),
)
VALUES = (
    *("t", "u", "ch", "t%23ephemeral", "", "json", "1", "0", "-1", "true", "false", "a%20b", "%00"),
    *("%ff", "%zz", ";", "9" * 40, "%2B5", "memory,disk", "%F0%9F%98%80", "..%2f.."),
)
BODIES = (b"", b"x", b"a\nb\n\nc", b"\0\0\0\1\0\0\0\1x", b"\xff" * 50, b"[]", b"info", b"x" * 2000,
          b"\x7f\xff\xff\xff", b"null", b'["127.0.0.1:1"]')  # fmt: skip


def make_request(dice: random.Random) -> tuple[str, str, bytes | None]:
    pairs = [
        f"{dice.choice(NAMES)}={dice.choice(VALUES)}" for _ in range(dice.choice((0, 1, 2, 2, 3)))
    ]
    if dice.random() < 0.7:
        pairs = [f"topic={dice.choice(('t', 'u'))}", "channel=ch", *pairs]
    query = "?" + "&".join(pairs) if pairs else ""
    body = dice.choice(BODIES) if dice.random() < 0.8 else None
    return dice.choice(METHODS), dice.choice(PATHS) + query, body


@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_is_one_of_the_api(
    start_nsqd: StartNsqd, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = await start_nsqd(max_msg_size=1000, max_body_size=5000, mem_queue_size=3)
    dice = random.Random(seed)
    pending = [make_request(dice) for _ in range(REQUESTS)]

    while pending:
        async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
            is_open = True
            while pending and is_open:
                method, target, body = pending.pop()
                reply = await http.request(method, target, body)
                assert reply.status in EXPECTED, (method, target, reply)
                is_open = reply.headers.get("connection") != "close"

    assert (await nsqd.stats())["health"] == "OK"
    assert not [record for record in caplog.records if record.exc_info]
