"""Pages of other sites: a visitor's browser changes nothing in nsqd or nsqlookupd for them."""

import pytest

from tests.support.http_client import HttpClient
from tests.support.lookupd_in_process import LookupdInProcess
from tests.support.running_daemon import RunningDaemon

FORM = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
FETCH = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}


@pytest.mark.parametrize("headers", [FORM, FETCH])
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/pub?topic=t"),
        ("POST", "/topic/delete?topic=t"),
        ("POST", "/topic/empty?topic=t"),
        ("GET", "/delete_topic?topic=t"),
        ("PUT", "/config/log_level"),
        ("POST", "/drain"),
    ],
)
async def test_nsqd_refuses_changes(
    nsqd: RunningDaemon, method: str, target: str, headers: dict[str, str]
) -> None:
    await nsqd.publish("t", b"1")
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        reply = await http.request(method, target, b"debug", headers=headers)

    assert reply.error == (403, "CROSS_SITE")
    assert nsqd.daemon.broker.topics["t"].message_count == 1
    assert not nsqd.daemon.broker.is_draining


async def test_rebound_name_reads_nothing(nsqd: RunningDaemon) -> None:
    headers = {"User-Agent": "Mozilla/5.0"}  # and the client says Host: nsqd.example
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        reply = await http.request("GET", "/stats?format=json", headers=headers)

    assert reply.error == (421, "WRONG_HOST")


async def test_nsqlookupd_refuses_changes(lookupd: LookupdInProcess) -> None:
    async with await HttpClient.connect(("127.0.0.1", lookupd.daemon.http_port)) as http:
        reply = await http.request("POST", "/topic/create?topic=t", b"", headers=FORM)
        topics = (await http.get("/topics")).json()

    assert reply.error == (403, "CROSS_SITE")
    assert topics == {"topics": []}
