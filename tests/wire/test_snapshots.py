"""POST /snapshot and GET /segments: docs/contract/analytics.md on the running daemon."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from diskqueue import layout
from diskqueue.checksums.marks import have_same_mark
from diskqueue.envelope import Envelope, decode
from tests.support.certs import make_authority, make_server
from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import client_context


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


@pytest.fixture
async def small(start_nsqd: StartNsqd) -> RunningDaemon:
    """nsqd with little memory and small files."""
    return await start_nsqd(mem_queue_size=5, max_bytes_per_file=4096)


@pytest.fixture
async def http(small: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect(small) as client:
        yield client


async def take(http: HttpClient, query: str = "", body: bytes = b"") -> dict[str, Any]:
    reply = await http.post(f"/snapshot?{query}", body)
    assert reply.status == 200, reply.text
    snapshot: dict[str, Any] = reply.json()
    return snapshot


async def get(http: HttpClient, snapshot: dict[str, Any], name: str, span: str = "") -> bytes:
    headers = {"Range": f"bytes={span}"} if span else {}
    target = f"/segments/{quote(name)}?id={snapshot['lease']['id']}"
    reply = await http.request("GET", target, headers=headers)
    assert reply.status == (206 if span else 200), reply.text
    return reply.body


def split(records: bytes) -> list[tuple[int, Envelope]]:
    found, position = [], 0
    while position < len(records):
        size = int.from_bytes(records[position : position + 4])
        found.append((position, decode(records[position + 4 : position + 4 + size])))
        position += 4 + size
    return found


async def read_queue(
    http: HttpClient, snapshot: dict[str, Any], queue: dict[str, Any]
) -> dict[str, list[Envelope]]:
    """Read all places of a queue as the contract says."""
    places: dict[str, list[Envelope]] = {"disk": []}
    for segment in queue["segments"]:
        start, end = segment["start"], segment["end"]
        for offset, message in split(
            await get(http, snapshot, segment["file"], f"{start}-{end - 1}")
        ):
            if not any(first <= start + offset < last for first, last in segment["finished"]):
                places["disk"].append(message)
    for part in queue["parts"]:
        data = await get(http, snapshot, part["file"])
        messages = [message for _, message in split(data)]
        assert (len(messages), len(data)) == (part["count"], part["bytes"])
        if part["due_file"] is not None:
            assert len(await get(http, snapshot, part["due_file"])) == 8 * part["count"]
        places.setdefault(part["state"], []).extend(messages)
    assert len(await get(http, snapshot, queue["due"]["file"])) == queue["due"]["bytes"]
    return places


def bodies(places: dict[str, list[Envelope]]) -> Counter[bytes]:
    return Counter(message.body for each in places.values() for message in each)


async def test_every_message_in_one_of_its_places(small: RunningDaemon, http: HttpClient) -> None:
    sent = [b"%d" % number for number in range(6000)]
    consumer = await small.consumer("t", rdy=3)
    for start in range(0, 6000, 500):
        await small.publish("t", *sent[start : start + 500])
    flying = await consumer.read_messages(3)
    consumer.req(flying[0], 60_000)
    [late] = await consumer.read_messages(1)
    await small.wait_for_channel("t", deferred_count=1)

    snapshot = await take(http, "topic=t&channel=*&lease=90s")

    [queue] = snapshot["queues"]
    assert (snapshot["format"], snapshot["from"]) == (1, "queue")
    assert 0 < snapshot["lease"]["seconds"] <= 90
    places = await read_queue(http, snapshot, queue)
    assert bodies(places) == Counter(sent)
    assert {each.message_id: each.attempts for each in places["in_flight"]} == {
        message.id: 1 for message in (*flying[1:], late)
    }
    assert [(each.message_id, each.attempts) for each in places["deferred"]] == [(flying[0].id, 1)]
    counts = {place: len(messages) for place, messages in places.items()}
    assert queue["counts"] == {
        "memory": counts["ready"],
        **{place: counts[place] for place in ("disk", "in_flight", "deferred")},
    }
    assert counts["disk"] > 1000
    first_times = [segment["first_ns"] for segment in queue["segments"]]
    assert first_times == sorted(first_times)
    assert None not in first_times
    due = next(part for part in queue["parts"] if part["state"] == "deferred")["due_file"]
    [due_ns] = [int.from_bytes(await get(http, snapshot, due))]
    assert 0 < due_ns - queue["taken_ns"] <= 60 * 10**9


@pytest.mark.parametrize("event", ["consume", "empty", "delete", "make anew"])
async def test_a_lease_holds_what_was_listed(
    small: RunningDaemon, http: HttpClient, tmp_path: Path, event: str
) -> None:
    sent = [b"%d" % number for number in range(6000)]
    await small.post("/topic/create?topic=t")
    await small.post("/channel/create?topic=t&channel=ch")
    for start in range(0, 6000, 1000):
        await small.publish("t", *sent[start : start + 1000])
    snapshot = await take(http)
    queue = next(each for each in snapshot["queues"] if each["channel"] == "ch")
    names = [layout.checksum_path(segment["file"]) for segment in queue["segments"]]
    checksums = [(tmp_path / name).read_bytes() for name in names]
    segment_bytes = sum(segment["end"] for segment in queue["segments"])
    part_bytes = sum(part["bytes"] for part in queue["parts"])
    assert snapshot["lease"]["bytes"] == segment_bytes + sum(map(len, checksums)) + part_bytes

    if event == "consume":
        consumer = await small.consumer("t", rdy=1000)
        for _ in range(6000):
            consumer.fin(await consumer.read_message())
        await small.wait_for_channel("t", depth=0, in_flight_count=0)
        await small.post("/channel/empty?topic=t&channel=ch")
    elif event == "empty":
        await small.post("/channel/empty?topic=t&channel=ch")
    else:
        await small.post("/topic/delete?topic=t")
    if event == "make anew":
        await small.post("/topic/create?topic=t")
        await small.post("/channel/create?topic=t&channel=ch")
        await small.publish("t", *[b"new"] * 5000)
        manifest = json.loads((await small.request("GET", "/segments?channel=ch"))[1])
        assert manifest["queues"][0]["generation"] != queue["generation"]
    else:
        gone = {segment["file"] for segment in queue["segments"][:-1]} | set(names[:-1])
        assert not gone & set(os.listdir(tmp_path))

    assert bodies(await read_queue(http, snapshot, queue)) == Counter(sent)
    assert [await get(http, snapshot, name) for name in names] == checksums


async def test_the_end_of_a_lease(small: RunningDaemon, http: HttpClient) -> None:
    await small.publish("t", *[b"x"] * 3)
    snapshot = await take(http, "topic=t")
    lease_id = snapshot["lease"]["id"]
    [part] = snapshot["queues"][0]["parts"]

    renewed = await http.post(f"/snapshot/renew?id={lease_id}&lease=5m")
    [listed] = (await http.get("/snapshot")).json()["leases"]

    assert 299 < renewed.json()["lease"]["seconds"] <= 300
    assert (listed["id"], listed["queues"]) == (lease_id, 1)
    assert listed["bytes"] == snapshot["lease"]["bytes"] == part["bytes"]
    for _ in range(2):
        released = await http.post(f"/snapshot/release?id={lease_id}")
        assert (released.status, released.body) == (200, b"")
    for method, target in [
        ("GET", f"/segments/{part['file']}?id={lease_id}"),
        ("POST", f"/snapshot/renew?id={lease_id}"),
    ]:
        assert (await http.request(method, target)).error == (404, "LEASE_NOT_FOUND")


async def test_ranges(small: RunningDaemon, http: HttpClient) -> None:
    await small.publish("t", *[b"%04d" % number for number in range(5)])
    snapshot = await take(http)
    [part] = snapshot["queues"][0]["parts"]
    name, size = part["file"], part["bytes"]
    whole = await get(http, snapshot, name)
    target = f"/segments/{name}?id={snapshot['lease']['id']}"

    async def ask(method: str, value: str) -> Any:
        return await http.request(method, target, headers={"Range": value})

    reply = await ask("GET", "bytes=3-9")
    assert (reply.status, reply.body) == (206, whole[3:10])
    assert reply.headers["content-range"] == f"bytes 3-9/{size}"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert (await ask("GET", "bytes=5-")).body == whole[5:]
    assert (await ask("GET", "bytes=-7")).body == whole[-7:]
    assert (await ask("GET", f"bytes=1-{10**15}")).body == whole[1:]
    for value in ("bytes=5-3", "bytes=-", "bytes=0-1,3-4", "lines=1-2", "x"):
        reply = await ask("GET", value)
        assert (reply.status, reply.body) == (200, whole), value
    reply = await ask("GET", f"bytes={size}-")
    assert reply.error == (416, "RANGE_NOT_SATISFIABLE")
    assert reply.headers["content-range"] == f"bytes */{size}"
    reply = await ask("HEAD", "bytes=3-9")
    assert (reply.status, reply.headers["content-length"], reply.body) == (206, "7", b"")
    # Requests behind one for a file wait for it.
    http.send(
        f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\nGET /ping HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    )
    assert (await http.read_reply()).body == whole
    assert (await http.read_reply()).body == b"OK"


async def test_the_manifest(small: RunningDaemon, http: HttpClient) -> None:
    consumer = await small.consumer("t", rdy=1)
    await small.publish("t", *[b"%d" % number for number in range(500)])
    taken = await consumer.read_message()

    reply = await http.get("/segments?topic=t&channel=ch")

    [queue] = reply.json()["queues"]
    assert queue["counts"]["in_flight"] == 1
    assert sum(queue["counts"].values()) == 500
    # Records have 30 bytes and the digits of their number; the first is in flight.
    assert queue["waiting_bytes"] == 499 * 30 + 9 + 90 * 2 + 400 * 3
    assert queue["read"] <= queue["unread"] <= queue["write"]
    assert queue["synced"] <= queue["write"]
    assert queue["write"] == [queue["segments"][-1]["number"], queue["segments"][-1]["end"]]
    tag = reply.headers["etag"]
    target = "/segments?topic=t&channel=ch"
    unchanged = await http.request("HEAD", target, headers={"If-None-Match": tag})
    assert (unchanged.status, unchanged.headers["etag"]) == (304, tag)
    await small.publish("t", b"one more")
    changed = await http.request("GET", target, headers={"If-None-Match": tag})
    assert (changed.status, changed.headers["etag"] == tag) == (200, False)
    consumer.fin(taken)
    assert (await consumer.read_message()).timestamp_ns == queue["front_ns"]


async def test_a_segment_without_a_lease(
    small: RunningDaemon, http: HttpClient, tmp_path: Path
) -> None:
    await small.publish("t", *[b"%d" % number for number in range(500)])
    [queue] = (await http.get("/segments?topic=t")).json()["queues"]
    segment, generation = queue["segments"][0], queue["generation"]
    target = f"/segments/{segment['file']}?from=queue&generation="

    reply = await http.get(target + generation)

    assert reply.body == (tmp_path / segment["file"]).read_bytes()[: segment["end"]]
    missing = f"/segments/t.diskqueue.009999.dat?from=queue&generation={generation}"
    other = f"/segments/other.diskqueue.000000.dat?from=queue&generation={generation}"
    for bad, error in [
        (target + "0" * 32, (412, "GENERATION_CHANGED")),
        (target, (400, "MISSING_ARG_GENERATION")),
        (missing, (404, "SEGMENT_NOT_FOUND")),
        (other, (404, "QUEUE_NOT_FOUND")),
        ("/segments/nsqd.dat?from=queue&generation=1", (404, "SEGMENT_NOT_FOUND")),
        ("/segments/..%2Fx?from=queue&generation=1", (404, "NOT_FOUND")),
        ("/segments/..?from=queue&generation=1", (404, "SEGMENT_NOT_FOUND")),
        (f"/segments/{segment['file']}", (400, "INVALID_ARG_ID")),
        (f"/segments/{segment['file']}?id=", (400, "INVALID_ARG_ID")),
        (f"/segments/{segment['file']}?from=x&generation=1", (400, "INVALID_ARG_FROM")),
    ]:
        assert (await http.get(bad)).error == error, bad


async def test_checksum_files_are_served_as_their_segments_are(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    nsqd = await start_nsqd(mem_queue_size=5, retain_bytes=10**6)
    name = "t.diskqueue.000000.crc"
    await nsqd.publish("t", *[b"%d" % number for number in range(6000)])
    async with await connect(nsqd) as http:
        for source, directory in (("queue", tmp_path), ("archive", tmp_path / "archive")):
            snapshot = await take(http, f"from={source}&topic=t")
            content = (directory / name).read_bytes()
            marked = have_same_mark(
                f"{directory}/{name}".replace(".crc", ".dat"), f"{directory}/{name}"
            )
            generation = snapshot["queues"][0]["generation"]
            for query in (
                f"id={snapshot['lease']['id']}",
                f"from={source}&generation={generation}",
            ):
                reply = await http.get(f"/segments/{name}?{query}")

                assert (reply.status, reply.body) == (200, content)
                assert reply.headers["x-nsq-same-mark"] == ("true" if marked else "false")
                missing = f"/segments/t.diskqueue.000009.crc?{query}"
                assert (await http.get(missing)).error == (404, "SEGMENT_NOT_FOUND")
            stale = f"/segments/{name}?from={source}&generation={'0' * 32}"
            assert (await http.get(stale)).error == (412, "GENERATION_CHANGED")


async def test_segment_without_checksums_has_no_checksum_file(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    nsqd = await start_nsqd(mem_queue_size=5, disk_checksums=False)
    await nsqd.publish("t", *[b"%d" % number for number in range(6000)])
    async with await connect(nsqd) as http:
        snapshot = await take(http, "topic=t")
        generation = snapshot["queues"][0]["generation"]
        assert snapshot["queues"][0]["segments"]
        targets = [
            f"/segments/t.diskqueue.000000.crc?{query}"
            for query in (f"id={snapshot['lease']['id']}", f"from=queue&generation={generation}")
        ]
        for target in targets:
            assert (await http.get(target)).error == (404, "SEGMENT_NOT_FOUND")
        # Something else that has the name is no file to send.
        (tmp_path / "t.diskqueue.000000.crc").mkdir()
        for target in targets:
            assert (await http.get(target)).error == (404, "SEGMENT_NOT_FOUND")


async def test_the_archive(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = await start_nsqd(retain_bytes=10**6)
    sent = [b"%d" % number for number in range(300)]
    await nsqd.publish("t", *sent)
    async with await connect(nsqd) as http:
        snapshot = await take(http, "from=archive&topic=t")
        manifest = (await http.get("/segments?from=archive")).json()
        [queue] = snapshot["queues"]
        [listed] = manifest["queues"]
        await nsqd.post("/topic/delete?topic=t")

        assert (snapshot["from"], queue["channel"], queue["parts"]) == ("archive", None, [])
        assert queue["counts"] == listed["counts"] == {"disk": 300}
        assert listed["generation"] == queue["generation"]
        assert listed["write"][1] == queue["segments"][-1]["end"]
        assert [each.body for each in (await read_queue(http, snapshot, queue))["disk"]] == sent
        gone = f"/segments/t.diskqueue.000000.dat?from=archive&generation={queue['generation']}"
        assert (await http.get(gone)).error == (404, "QUEUE_NOT_FOUND")
        assert not list((tmp_path / "archive").glob("t.*"))


async def test_ephemeral_queues_have_generations_too(
    small: RunningDaemon, http: HttpClient
) -> None:
    await small.consumer("t", "now#ephemeral")
    await small.publish("t", b"1", b"2")

    snapshot = await take(http, "channel=now*")

    [queue] = snapshot["queues"]
    assert len(queue["generation"]) == 32
    assert bodies(await read_queue(http, snapshot, queue)) == Counter([b"1", b"2"])


async def test_what_is_refused(small: RunningDaemon, http: HttpClient) -> None:
    for target, error in [
        ("/snapshot?topic=a%20b", (400, "INVALID_ARG_TOPIC")),
        ("/snapshot?channel=%C3%BC", (400, "INVALID_ARG_CHANNEL")),
        ("/snapshot?lease=10", (400, "INVALID_ARG_LEASE")),
        ("/snapshot?lease=-1s", (400, "INVALID_ARG_LEASE")),
        ("/snapshot?lease=2h", (400, "INVALID_ARG_LEASE")),
        ("/snapshot?from=disk", (400, "INVALID_ARG_FROM")),
        ("/snapshot?from=archive", (404, "ARCHIVE_DISABLED")),
        ("/snapshot/renew", (400, "INVALID_ARG_ID")),
        ("/snapshot/release", (400, "INVALID_ARG_ID")),
    ]:
        assert (await http.post(target)).error == error, target
    assert (await http.post("/snapshot", b"[" * 100_000)).error == (400, "INVALID_BODY")
    nothing = await take(http, body=b'{"queues": [["t", null]]}')
    manifest = (await http.get("/segments")).json()
    # Of the data, and of the process.
    assert [nothing[name] == manifest[name] for name in ("node_id", "run_id")] == [True, True]
    assert nothing["node_id"] != nothing["run_id"]
    assert nothing | {"lease": 0, "node_id": 0, "run_id": 0} == {
        "format": 1,
        "node_id": 0,
        "run_id": 0,
        "from": "queue",
        "lease": 0,
        "queues": [],
    }


async def test_bounds(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(snapshot_max_leases=1, snapshot_max_bytes=100)
    async with await connect(nsqd) as http:
        await nsqd.publish("t", b"x" * 100)
        assert (await http.post("/snapshot")).error == (413, "SNAPSHOT_TOO_LARGE")
        await nsqd.post("/topic/empty?topic=t")
        await take(http)
        assert (await http.post("/snapshot")).error == (429, "TOO_MANY_LEASES")


async def test_turned_off(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(analytics=False)
    async with await connect(nsqd) as http:
        for method, target in [("POST", "/snapshot"), ("GET", "/segments/x"), ("GET", "/segments")]:
            assert (await http.request(method, target)).error == (403, "ANALYTICS_DISABLED")
        assert (await http.get("/info")).json()["analytics"] is False


@pytest.mark.parametrize("has_auth_server", [False, True])
async def test_the_token(start_nsqd: StartNsqd, tmp_path: Path, *, has_auth_server: bool) -> None:
    (tmp_path / "token").write_text("sesame")
    addresses = ("127.0.0.1:1",) if has_auth_server else ()
    nsqd = await start_nsqd(
        http_auth_token_file=str(tmp_path / "token"), auth_http_addresses=addresses
    )
    async with await connect(nsqd) as http:
        for target in ("/snapshot", "/segments", "/segments/x?id=1", "/segments/x/"):
            assert (await http.get(target)).status == 401, target
            with_token = {"Authorization": "Bearer sesame"}
            assert (await http.request("GET", target, headers=with_token)).status in (200, 301, 404)
        assert (await http.get("/info")).json()["analytics"] is True


async def test_where_clients_must_auth_and_there_is_no_token(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(auth_http_addresses=("127.0.0.1:1",))
    async with await connect(nsqd) as http:
        error = (await http.post("/snapshot")).error
        assert error == (403, "HTTP_AUTH_TOKEN_FILE_REQUIRED")
        assert (await http.get("/info")).json()["analytics"] is False


@pytest.mark.both_loops
@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_large_file_and_a_slow_reader(
    start_nsqd: StartNsqd, tmp_path: Path, *, is_tls: bool
) -> None:
    authority = make_authority(tmp_path)
    server = make_server(tmp_path, authority)
    data_path = tmp_path / "data"
    data_path.mkdir()
    nsqd = await start_nsqd(
        data_path=data_path,
        mem_queue_size=0,
        https_address="127.0.0.1:0",
        tls_cert=server.cert_file,
        tls_key=server.key_file,
    )
    big = os.urandom(10**6)
    for _ in range(24):
        await nsqd.publish("t", big)
    port = nsqd.daemon.https_port if is_tls else nsqd.daemon.http_port
    context = client_context(authority) if is_tls else None
    async with (
        await HttpClient.connect(("127.0.0.1", port), context=context) as http,
        await HttpClient.connect(("127.0.0.1", port), context=context) as leaver,
    ):
        snapshot = await take(http)
        [segment] = snapshot["queues"][0]["segments"]
        start = segment["start"]
        leaver.send(
            f"GET /segments/{segment['file']}?id={snapshot['lease']['id']} HTTP/1.1\r\n"
            "Host: h\r\n\r\n".encode()
        )
        whole = (data_path / segment["file"]).read_bytes()
        assert await get(http, snapshot, segment["file"]) == whole[: segment["end"]]
        leaver.abort()
        assert await get(http, snapshot, segment["file"], f"{start}-") == whole[start:]
    await asyncio.sleep(0)
