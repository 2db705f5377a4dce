"""nsqlookupd's HTTP API over real sockets, on uvloop and on stock asyncio (L-14 to L-25)."""

import contextlib
import json
import re
import resource
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lookupd import daemon
from nsqd.http import routes
from nsqd.protocol.lookup import NsqdIdentity
from nsqd.runtime.turns import Turns
from tests.support.clock import StillClock
from tests.support.lookupd_in_process import LookupdInProcess, LoopFactory


def producers(lookupd: LookupdInProcess, topic: str) -> list[Any]:
    found: list[Any] = lookupd.get(f"/lookup?topic={topic}")["producers"]
    return found


def test_ping_is_plain_and_the_rest_is_v1(lookupd: LookupdInProcess) -> None:  # L-14, H-1
    ping = lookupd.request("GET", "/ping")
    info = lookupd.request("GET", "/info")

    assert (ping.status, ping.body) == (200, b"OK")
    assert "x-nsq-content-type" not in ping.headers
    assert info.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert info.headers["content-type"] == "application/json; charset=utf-8"
    assert lookupd.get("/info") == {"version": "1.3.0"}


def test_an_empty_database_has_empty_lists(lookupd: LookupdInProcess) -> None:  # L-14, L-15
    assert lookupd.get("/topics") == {"topics": []}
    assert lookupd.get("/nodes") == {"producers": []}
    assert lookupd.get("/channels?topic=nope") == {"channels": []}
    assert lookupd.get("/debug") == {}


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=nope", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a%20b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=*&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=nope", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/nope", 404, "NOT_FOUND"),
        ("POST", "/lookup", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_errors_are_json(
    lookupd: LookupdInProcess, method: str, target: str, status: int, code: str
) -> None:  # L-15, L-20, L-21, L-22
    response = lookupd.request(method, target)
    body = response.body

    assert (response.status, json.loads(body)) == (status, {"message": code})
    assert lookupd.get("/topics") == {"topics": []}


def test_a_wrong_letter_case_is_redirected(lookupd: LookupdInProcess) -> None:  # H-7
    response = lookupd.request("GET", "/TOPICS/")

    assert (response.status, response.headers["location"]) == (301, "/topics")


def test_topics_and_channels_are_created_and_deleted(lookupd: LookupdInProcess) -> None:  # L-22
    lookupd.post("/topic/create?topic=t")
    lookupd.post("/channel/create?topic=u&channel=c")
    lookupd.post("/channel/create?topic=u&channel=d")
    assert lookupd.get("/topics") == {"topics": ["t", "u"]}
    assert lookupd.get("/lookup?topic=t") == {"channels": [], "producers": []}  # L-16
    assert lookupd.get("/lookup?topic=u") == {"channels": ["c", "d"], "producers": []}

    lookupd.post("/channel/delete?topic=u&channel=c")
    assert lookupd.get("/channels?topic=u") == {"channels": ["d"]}

    lookupd.post("/topic/delete?topic=u")
    lookupd.post("/topic/delete?topic=u")  # L-21
    assert lookupd.get("/topics") == {"topics": ["t"]}
    assert lookupd.get("/channels?topic=u") == {"channels": []}


def test_a_star_is_no_wildcard(lookupd: LookupdInProcess) -> None:  # L-25
    with lookupd.nsqd() as peer:
        peer.command(b"REGISTER t c")

        lookupd.post("/topic/delete?topic=*")
        lookupd.post("/topic/tombstone?topic=*&node=peer.example:5151")
        response = lookupd.request("GET", "/lookup?topic=*")

        assert response.status == 404
        assert lookupd.get("/channels?topic=*") == {"channels": []}
        assert len(producers(lookupd, "t")) == 1


def test_a_producer_is_shown_as_it_identified_itself(lookupd: LookupdInProcess) -> None:  # L-14
    with lookupd.nsqd() as peer:
        peer.command(b"REGISTER t c")
        producer = {
            "remote_address": peer.address,
            "hostname": "host",
            "broadcast_address": "peer.example",
            "tcp_port": 5150,
            "http_port": 5151,
            "version": "1.3.0",
            "topology_zone": "zone",
            "topology_region": "region",
        }

        assert lookupd.get("/lookup?topic=t") == {"channels": ["c"], "producers": [producer]}
        assert lookupd.get("/nodes") == {
            "producers": [{**producer, "tombstones": [False], "topics": ["t"]}]
        }


def test_a_long_debug_page_is_made_part_by_part(lookupd: LookupdInProcess) -> None:
    with lookupd.nsqd("x" * 255) as peer:
        for number in range(300):
            peer.command(b"REGISTER t%d" % number)

        reply = lookupd.request("GET", "/debug")

    assert "content-length" not in reply.headers
    assert reply.headers["transfer-encoding"] == "chunked"
    assert len(reply.body) > routes.STREAMED_BYTES
    assert len(reply.json()) == 1 + 300


def test_debug_shows_the_whole_database(lookupd: LookupdInProcess) -> None:  # L-14
    with lookupd.nsqd() as peer:
        peer.command(b"REGISTER t c")
        lookupd.post("/topic/create?topic=empty")
        lookupd.post("/topic/tombstone?topic=t&node=peer.example:5151")

        shown = lookupd.get("/debug")

        assert set(shown) == {"client::", "topic:t:", "channel:t:c"}
        [entry] = shown["channel:t:c"]
        assert shown["client::"] == [entry]
        last_update = entry.pop("last_update")
        assert abs(last_update - time.time_ns()) < 10e9
        assert entry == {
            "broadcast_address": "peer.example",
            "hostname": "host",
            "http_port": 5151,
            "id": peer.address,
            "tcp_port": 5150,
            "tombstoned": False,
            "tombstoned_at": 0,
            "topology_region": "region",
            "topology_zone": "zone",
            "version": "1.3.0",
        }
        [tombstoned] = shown["topic:t:"]
        assert tombstoned["tombstoned"]
        assert last_update <= tombstoned["tombstoned_at"] <= time.time_ns()


def test_a_tombstone_hides_one_topic(lookupd: LookupdInProcess) -> None:  # L-18, L-19, L-23
    with lookupd.nsqd() as peer:
        peer.command(b"REGISTER t")
        peer.command(b"REGISTER u")

        lookupd.post("/topic/tombstone?topic=t&node=other.example:5151")  # L-20
        assert len(producers(lookupd, "t")) == 1

        lookupd.post("/topic/tombstone?topic=t&node=peer.example:5151")
        peer.command(b"REGISTER t")
        assert producers(lookupd, "t") == []
        assert len(producers(lookupd, "u")) == 1
        [node] = lookupd.get("/nodes")["producers"]
        assert dict(zip(node["topics"], node["tombstones"], strict=True)) == {"t": True, "u": False}

        peer.command(b"UNREGISTER t")
        peer.command(b"REGISTER t")
        assert len(producers(lookupd, "t")) == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    """Stand in for the clock of producers and tombstones."""
    clock = StillClock()
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_a_tombstone_ends_by_itself(loop_factory: LoopFactory, clock: StillClock) -> None:  # L-18
    with (
        LookupdInProcess(loop_factory, tombstone_lifetime_s=45.0) as lookupd,
        lookupd.nsqd() as peer,
    ):
        peer.command(b"REGISTER t")
        lookupd.post("/topic/tombstone?topic=t&node=peer.example:5151")
        clock.now += 44.0
        assert producers(lookupd, "t") == []
        clock.now += 1.0

        assert len(producers(lookupd, "t")) == 1


def test_a_silent_producer_is_hidden_until_it_pings(
    loop_factory: LoopFactory, clock: StillClock
) -> None:  # L-17
    with (
        LookupdInProcess(loop_factory, inactive_producer_timeout_s=300.0) as lookupd,
        lookupd.nsqd() as peer,
    ):
        peer.command(b"REGISTER t")
        clock.now += 301.0
        assert producers(lookupd, "t") == []
        assert lookupd.get("/nodes") == {"producers": []}

        peer.command(b"PING")
        assert len(producers(lookupd, "t")) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/debug/pprof/", b"profile"),
        ("/debug/pprof/cmdline", b"python"),
        ("/debug/pprof/heap", b"builtins.dict"),
        ("/debug/pprof/goroutine", b"lookupd_in_process.py"),
        ("/debug/pprof/threadcreate", b"MainThread"),
        ("/debug/pprof/symbol", b"num_symbols: 0"),
    ],
)
def test_what_goes_on_inside_is_shown(lookupd: LookupdInProcess, path: str, text: bytes) -> None:
    with lookupd.nsqd():
        response = lookupd.request("GET", path)
        body = response.body

    assert response.status == 200
    assert text in body


def test_a_profile_is_named_after_the_program(lookupd: LookupdInProcess) -> None:
    response = lookupd.request("GET", "/debug/pprof/profile?seconds=1&format=collapsed")
    body = response.body

    assert response.headers["content-disposition"] == (
        'attachment; filename="nsqlookupd.collapsed"'
    )
    assert b"lookupd_in_process.py" in body


def test_every_reply_is_counted(lookupd: LookupdInProcess) -> None:
    for method, target in (
        ("GET", "/lookup?topic=nope"),
        ("GET", "/lookup"),
        ("POST", "/lookup"),
        ("GET", "/nope"),
        ("GET", "/nope/2"),
        ("GET", "/TOPICS"),
        ("GET", "/debug/pprof/"),
    ):
        lookupd.request(method, target)
    with socket.create_connection(("127.0.0.1", lookupd.daemon.http_port), 5) as stranger:
        stranger.sendall(b"\0")
        assert stranger.recv(100).startswith(b"HTTP/1.1 400 ")

    body = lookupd.request("GET", "/metrics").body

    prefix = "nsqlookupd_http_requests_total"
    counted = {line for line in body.decode().splitlines() if line.startswith(prefix)}
    assert counted == {
        prefix + line
        for line in (
            '{path="/lookup",status="404"} 1.0',
            '{path="/lookup",status="400"} 1.0',
            '{path="/lookup",status="405"} 1.0',
            '{path="other",status="404"} 2.0',
            '{path="other",status="301"} 1.0',
            '{path="/debug/pprof/",status="200"} 1.0',
            '{path="other",status="400"} 1.0',
        )
    }


def test_metrics_count_what_there_is(lookupd: LookupdInProcess) -> None:
    with lookupd.nsqd() as peer, lookupd.peer(magic=b"  V2") as stranger:
        peer.command(b"REGISTER t c")
        peer.command(b"REGISTER t d")
        lookupd.post("/topic/tombstone?topic=t&node=peer.example:5151")
        lookupd.request("GET", "/lookup?topic=nope")
        assert stranger.read_reply() == b"E_BAD_PROTOCOL"
        assert stranger.is_closed_by_server()

        response = lookupd.request("GET", "/metrics")
        body = response.body

    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    lines = set(body.decode().splitlines())
    assert any(line.startswith("nsqlookupd_loop_lag_seconds_bucket") for line in lines)
    assert {
        "nsqlookupd_peers 1.0",
        "nsqlookupd_active_peers 1.0",
        "nsqlookupd_topics 1.0",
        "nsqlookupd_channels 2.0",
        'nsqlookupd_producers{category="topic"} 1.0',
        'nsqlookupd_producers{category="channel"} 2.0',
        "nsqlookupd_tombstones 1.0",
        "nsqlookupd_tcp_connections 1.0",
        "nsqlookupd_tcp_accepted_total 2.0",
        'nsqlookupd_tcp_commands_total{command="REGISTER"} 2.0',
        'nsqlookupd_tcp_errors_total{code="E_BAD_PROTOCOL"} 1.0',
        'nsqlookupd_http_requests_total{path="/topic/tombstone",status="200"} 1.0',
        'nsqlookupd_http_requests_total{path="/lookup",status="404"} 1.0',
    } <= lines


@pytest.mark.parametrize("target", ["/topics", "/nodes", "/debug"])
def test_a_long_reply_is_the_same_in_slices(
    lookupd: LookupdInProcess, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    with lookupd.nsqd() as peer, lookupd.nsqd() as other:
        for number in range(30):
            peer.command(b"REGISTER t%d c" % number)
            other.command(b"REGISTER t%d#ephemeral d" % number)
        lookupd.post("/topic/tombstone?topic=t7&node=peer.example:5151")
        whole = lookupd.get(target)
        registry = lookupd.daemon.registry
        turn_count = 0
        share = Turns.share

        def count(turns: Turns, step: Callable[[], bool]) -> None:
            nonlocal turn_count
            turn_count += 1
            if turn_count == 20:  # the registry changes between two slices
                registry.create_topic("new")
                registry.delete_topic("t25")
            share(turns, step)

        monkeypatch.setattr(routes, "STREAMED_BYTES", 100)
        monkeypatch.setattr(Turns, "slice_end", lambda _turns: 0.0)
        monkeypatch.setattr(Turns, "share", count)

        sliced = lookupd.get(target)

    if target == "/debug":
        assert turn_count > 100
    times = re.compile(r'"(last_update|tombstoned_at)": \d+')
    assert times.sub("", json.dumps(sliced)) == times.sub("", json.dumps(whole))


def test_debug_takes_little_memory_however_long_it_is(lookupd: LookupdInProcess) -> None:
    """One peer of 31 KB makes a reply of 15 MB; ten clients ask for it and do not read."""
    text = "\x01" * 255
    with lookupd.peer() as peer, contextlib.ExitStack() as clients:
        peer.identify(NsqdIdentity(text, 1, 2, text, text, text, text))
        peer.send(b"".join(b"REGISTER t%d\n" % number for number in range(2000)))
        for _ in range(2000):
            peer.read_reply()
        before = resident_bytes()

        for _ in range(10):
            client = clients.enter_context(
                socket.create_connection(("127.0.0.1", lookupd.daemon.http_port))
            )
            client.sendall(b"GET /debug HTTP/1.1\r\nHost: h\r\n\r\n")
            assert client.recv(16) == b"HTTP/1.1 200 OK\r"
        body = lookupd.request("GET", "/debug").body

        assert len(body) > 15_000_000
        assert resident_bytes() - before - len(body) < 20 * 2**20
        assert len(json.loads(body)) == 2001


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
