"""The routes of snapshots and segments: arguments, ranges, and how each failure is answered."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqd.analytics.leases import LeaseError
from nsqd.analytics.segments import OpenFile
from nsqd.api.analytics import MAX_BODY_BYTES, AnalyticsRoutes
from nsqd.config.options import Options
from nsqd.http.file_body import FileBody
from nsqd.http.routes import HttpError, Response
from tests.support.api_rig import ApiRig

CONTENT = bytes(range(10))
LEASE = SimpleNamespace(id="known", size_bytes=77, queue_count=3, remote="r:1")


class FakeLeases(list[Any]):
    """One lease, and what is done to it."""

    def __init__(self) -> None:
        super().__init__([LEASE])
        self.renewed: list[float] = []
        self.released: list[str] = []

    def find(self, lease_id: str) -> Any:
        return LEASE if lease_id == LEASE.id else None

    def renew(self, _lease: Any, seconds: float) -> None:
        self.renewed.append(seconds)

    def release(self, lease_id: str) -> None:
        self.released.append(lease_id)

    def seconds_left(self, _lease: Any) -> float:
        return 12.34567

    def expires_ns(self, _lease: Any) -> int:
        return 99


class FakeAnalytics:
    """Notes the questions, and fails if a test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"before" + CONTENT + b"behind")
        self.run_id = "run"
        self.leases = FakeLeases()
        self.error: Exception | None = None
        self.is_marked: bool | None = None
        self.asked: list[Any] = []
        self.snapshots = SimpleNamespace(take=self._take)
        self.manifest = SimpleNamespace(describe=self._describe, open_segment=self._open_segment)

    def _note(self, *question: Any) -> None:
        self.asked.append(question)
        if self.error is not None:
            raise self.error

    async def _take(self, query: Any, remote: str, seconds: float) -> Any:
        self._note(query.source.value, remote, seconds)
        return LEASE, [b'{"topic":"a"}', b'{"topic":"b"}']

    async def _describe(self, query: Any) -> list[bytes]:
        self._note(query.source.value)
        return [b'{"topic":"%d"}' % number for number in range(300)]

    async def open(self, lease: Any, name: str) -> OpenFile:
        self._note(lease.id, name)
        return self._file()

    async def _open_segment(self, source: Any, name: str, generation: str) -> OpenFile:
        self._note(source.value, name, generation)
        return self._file()

    def _file(self) -> OpenFile:
        body = FileBody(os.open(self.path, os.O_RDONLY), len(b"before"), len(CONTENT))
        return OpenFile(body, self.is_marked)


class Rig(ApiRig):
    """The routes with a fake of what they serve."""

    def __init__(self, data_path: Path, **options: Any) -> None:
        super().__init__(data_path)
        self.analytics = FakeAnalytics(data_path / "file")
        self.node.options = Options(**options)
        self.node.analytics = self.analytics
        self.node.node_id = "node"

    def serve(self) -> "Rig":
        AnalyticsRoutes(self.node).add_to(self.router)
        return self

    async def ask(self, method: str, target: str, **headers: str) -> Response:
        """Return the response, that of an error included."""
        request = self.parse(method, target)
        request.headers |= {
            name.replace("_", "-").encode(): value.encode() for name, value in headers.items()
        }
        try:
            reply = request.route.handler(request)
            return reply if isinstance(reply, Response) else await reply
        except HttpError as error:
            return Response.error(error, request.route.style)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path).serve()


SEGMENT = "/segments/f.dat?id=known"


@pytest.mark.parametrize(
    ("value", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=3-9", (3, 10)),
        ("bytes=3-10", (3, 10)),
        ("bytes=9-", (9, 10)),
        ("bytes=0-", (0, 10)),
        ("bytes=-1", (9, 10)),
        ("bytes=-10", (0, 10)),
        ("bytes=-11", (0, 10)),
        ("bytes= 3 - 4 ", (3, 5)),
        ("bytes=5-5", (5, 6)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=1-2", None),
        ("", None),
        ("bytes=10-", "refused"),
        ("bytes=10-12", "refused"),
        ("bytes=-0", "refused"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_range_of_a_file(rig: Rig, method: str, value: str, span: Any) -> None:
    reply = await rig.ask(method, SEGMENT, range=value)

    if span == "refused":
        assert (reply.status, reply.body) == (416, b'{"message":"RANGE_NOT_SATISFIABLE"}')
        assert reply.headers == {"Content-Range": "bytes */10"}
        assert reply.content_type.startswith("application/json")
        return
    start, stop = span or (0, 10)
    assert reply.file is not None
    assert (reply.file.offset, reply.file.size_bytes) == (6 + start, stop - start)
    assert reply.status == (200 if span is None else 206)
    wanted = (
        {"Content-Range": f"bytes {start}-{stop - 1}/10"} if span else {"Accept-Ranges": "bytes"}
    )
    assert reply.headers == wanted


@pytest.mark.parametrize(("is_marked", "text"), [(None, None), (True, "true"), (False, "false")])
async def test_the_mark_of_a_checksum_file(
    rig: Rig, *, is_marked: bool | None, text: str | None
) -> None:
    rig.analytics.is_marked = is_marked

    reply = await rig.ask("GET", SEGMENT)

    assert reply.headers.get("X-NSQ-Same-Mark") == text


@pytest.mark.parametrize(
    ("error", "opening", "taking", "listing"),
    [
        (LeaseError(410, "LEASE_ENDED"), (410, "LEASE_ENDED"), (410, "LEASE_ENDED"), None),
        (FileNotFoundError(), (404, "SEGMENT_NOT_FOUND"), (500, "INTERNAL_ERROR"), None),
        (
            OSError(errno.ENOSPC, "No space"),
            (500, "INTERNAL_ERROR"),
            (507, "DISK_FULL: no space"),
            (500, "INTERNAL_ERROR"),
        ),
        (
            OSError(errno.EIO, "Broken"),
            (500, "INTERNAL_ERROR"),
            (500, "INTERNAL_ERROR"),
            (500, "INTERNAL_ERROR"),
        ),
    ],
)
async def test_a_failure_is_answered(
    rig: Rig, error: Exception, opening: Any, taking: Any, listing: Any
) -> None:
    rig.analytics.error = error

    assert await rig.call("GET", SEGMENT) == opening
    assert await rig.call("GET", "/segments/f.dat?from=queue&generation=5") == opening
    assert await rig.call("POST", "/snapshot") == taking
    if listing is not None:
        assert await rig.call("GET", "/segments") == listing


async def test_a_file_that_went_with_its_lease_is_told_as_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: object) -> None:
        monkeypatch.setattr(rig.analytics.leases, "find", lambda _id: None)
        raise FileNotFoundError

    monkeypatch.setattr(rig.analytics, "open", end)

    assert await rig.call("GET", SEGMENT) == (404, "LEASE_NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "target", "answer"),
    [
        ("GET", "/segments/f.dat", (400, "INVALID_ARG_ID")),
        ("GET", "/segments/f.dat?id=", (400, "INVALID_ARG_ID")),
        ("GET", "/segments/f.dat?id=no", (404, "LEASE_NOT_FOUND")),
        ("GET", "/segments/f.dat?from=queue", (400, "MISSING_ARG_GENERATION")),
        ("GET", "/segments/f.dat?from=no&generation=1", (400, "INVALID_ARG_FROM")),
        ("GET", "/segments/f.dat?from=archive&generation=1", (404, "ARCHIVE_DISABLED")),
        ("GET", "/segments?from=no", (400, "INVALID_ARG_FROM")),
        ("GET", "/segments?topic=", (400, "INVALID_ARG_TOPIC")),
        ("GET", "/segments?channel=", (400, "INVALID_ARG_CHANNEL")),
        ("POST", "/snapshot?lease=x", (400, "INVALID_ARG_LEASE")),
        ("POST", "/snapshot?lease=0s", (400, "INVALID_ARG_LEASE")),
        ("POST", "/snapshot?lease=-1s", (400, "INVALID_ARG_LEASE")),
        ("POST", "/snapshot?lease=61s", (400, "INVALID_ARG_LEASE")),
        ("POST", "/snapshot/renew", (400, "INVALID_ARG_ID")),
        ("POST", "/snapshot/renew?id=no", (404, "LEASE_NOT_FOUND")),
        ("POST", "/snapshot/renew?id=known&lease=61s", (400, "INVALID_ARG_LEASE")),
        ("POST", "/snapshot/release", (400, "INVALID_ARG_ID")),
        ("POST", "/snapshot/release?id=no", (200, "")),
    ],
)
async def test_wrong_arguments(tmp_path: Path, method: str, target: str, answer: Any) -> None:
    rig = Rig(tmp_path, snapshot_max_lease_s=60.0).serve()

    assert await rig.call(method, target) == answer

    assert rig.analytics.asked == []
    assert rig.analytics.leases.renewed == []


SHOWN = {"id": "known", "seconds": 12.346, "expires_ns": 99, "bytes": 77}
DOCUMENT = {"format": 1, "node_id": "node", "run_id": "run", "from": "queue"}


@pytest.mark.parametrize(
    ("max_lease_s", "query", "seconds"),
    [
        (60.0, "", 60.0),
        (600.0, "", 600.0),
        (900.0, "", 600.0),
        (60.0, "?lease=60s", 60.0),
        (60.0, "?lease=1ms", 0.001),
    ],
)
async def test_a_snapshot(tmp_path: Path, max_lease_s: float, query: str, seconds: float) -> None:
    rig = Rig(tmp_path, snapshot_max_lease_s=max_lease_s).serve()

    status, document = await rig.call("POST", f"/snapshot{query}")

    queues = [{"topic": "a"}, {"topic": "b"}]
    assert (status, document) == (200, {**DOCUMENT, "lease": SHOWN, "queues": queues})
    assert rig.analytics.asked == [("queue", "127.0.0.1:5", seconds)]


async def test_leases_are_shown_renewed_and_released(rig: Rig) -> None:
    assert await rig.call("GET", "/snapshot") == (
        200,
        {"leases": [{**SHOWN, "queues": 3, "remote": "r:1"}]},
    )
    assert await rig.call("POST", "/snapshot/renew?id=known&lease=5s") == (200, {"lease": SHOWN})
    assert await rig.call("POST", "/snapshot/release?id=known") == (200, "")

    assert rig.analytics.leases.renewed == [5.0]
    assert rig.analytics.leases.released == ["known"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_manifest_that_is_known_is_not_sent_again(rig: Rig, method: str) -> None:
    first = await rig.ask(method, "/segments")
    tag = first.headers["ETag"]
    text = b"".join([first.body, *first.more])

    assert (first.status, len(tag), text.count(b"topic")) == (200, 34, 300)
    assert (await rig.call("GET", "/segments"))[1]["queues"][299] == {"topic": "299"}
    for known in (tag, "*", f'"x", {tag}', f"  {tag}  ", " * "):
        again = await rig.ask(method, "/segments", if_none_match=known)
        assert (again.status, again.headers, again.body) == (304, {"ETag": tag}, b"")
    for known in ('"x"', "", tag[:-1], f"*, {tag[1:]}"):
        again = await rig.ask(method, "/segments", if_none_match=known)
        assert (again.status, again.headers) == (200, {"ETag": tag})


ROUTES = [
    ("POST", "/snapshot", MAX_BODY_BYTES),
    ("GET", "/snapshot", 64 * 1024),
    ("POST", "/snapshot/renew", 64 * 1024),
    ("POST", "/snapshot/release", 64 * 1024),
    ("GET", "/segments", 64 * 1024),
    ("HEAD", "/segments", 64 * 1024),
    ("GET", "/segments/x", 64 * 1024),
    ("HEAD", "/segments/x", 64 * 1024),
]


@pytest.mark.parametrize(("method", "path", "max_body_bytes"), ROUTES)
async def test_routes_that_are_closed(
    tmp_path: Path, method: str, path: str, max_body_bytes: int
) -> None:
    auth = {"auth_http_addresses": ("http://a",)}
    for number, (options, is_on, answer) in enumerate(
        [
            ({}, False, (403, "ANALYTICS_DISABLED")),
            (auth, True, (403, "HTTP_AUTH_TOKEN_FILE_REQUIRED")),
            (auth, False, (403, "ANALYTICS_DISABLED")),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        rig = Rig(folder, **options)
        if not is_on:
            rig.node.analytics = None
        rig.serve()
        assert await rig.call(method, path) == answer
        assert not AnalyticsRoutes.are_open(rig.node)
    rig = Rig(tmp_path, **auth, http_auth_token_file="token")
    assert AnalyticsRoutes.are_open(rig.node)
    rig.serve()
    assert rig.parse(method, path).route.max_body_bytes == max_body_bytes

    rig.broker.close()

    assert await rig.call(method, path) == (503, "EXITING")
