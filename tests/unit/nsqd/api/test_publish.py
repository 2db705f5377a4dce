"""POST /pub and /mpub: what becomes a message, and how a refusal is answered and counted."""

import asyncio
import errno
import tempfile
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.api.publish import PART_BYTES, PublishRoutes
from nsqd.broker.broker import Broker
from nsqd.broker.errors import ClosedError, DepthLimitError, DrainingError
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.topic import Topic
from nsqd.runtime.door_counts import Refusal
from tests.support.api_rig import ApiRig

OK = (200, "OK")
MAX_MSG = 10
MAX_BODY = 60
MAX_DEFER_MS = 5000


def make_rig(
    data_path: Path, *, max_msg_size: int = MAX_MSG, max_body_size: int = MAX_BODY
) -> ApiRig:
    rig = ApiRig(data_path)
    PublishRoutes(
        rig.broker,
        rig.counts,
        max_msg_size=max_msg_size,
        max_body_size=max_body_size,
        max_defer_ms=MAX_DEFER_MS,
    ).add_to(rig.router)
    return rig


@pytest.fixture
def rig(tmp_path: Path) -> ApiRig:
    return make_rig(tmp_path)


def published(rig: ApiRig, topic: str = "t") -> list[bytes]:
    found = rig.broker.find_topic(topic)
    return [] if found is None else [message[3] for message, _ in found.queue.iter_loaded()]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("path", ["/pub", "/put"])
@pytest.mark.parametrize(
    ("query", "body", "answer"),
    [
        ("topic=t", b"x", OK),
        ("topic=t", b"x" * MAX_MSG, OK),
        ("topic=t", b"x" * (MAX_MSG + 1), (413, {"message": "MSG_TOO_BIG"})),
        ("topic=t", b"", (400, "MSG_EMPTY")),
        ("", b"x", (400, "MISSING_ARG_TOPIC")),
        ("topic=", b"x", (400, "INVALID_TOPIC")),
        ("topic=a%20b", b"x", (400, "INVALID_TOPIC")),
        ("topic=t&defer=0", b"x", OK),
        ("topic=t&defer=-1", b"x", (400, "INVALID_DEFER")),
        (f"topic=t&defer={MAX_DEFER_MS + 1}", b"x", (400, "INVALID_DEFER")),
        ("topic=t&defer=1s", b"x", (400, "INVALID_DEFER")),
        ("topic=t&defer=", b"x", (400, "INVALID_DEFER")),
        ("topic=t&defer=" + "1" * 20, b"x", (400, "INVALID_DEFER")),
    ],
)
async def test_a_body_is_a_message_or_is_refused(
    rig: ApiRig, path: str, query: str, body: bytes, answer: tuple[int, Any], *, is_known: bool
) -> None:
    if is_known:
        rig.topic()

    assert await rig.call("POST", f"{path}?{query}", body) == answer

    assert published(rig) == ([body] if answer == OK else [])
    assert set(rig.broker.topics) == ({"t"} if is_known or answer == OK else set())
    assert not rig.counts.refusals


@pytest.mark.parametrize(("delay_ms", "advance_s"), [(1, 0.001), (5000, 5.0), (1500, 1.5)])
async def test_a_deferred_message_comes_after_its_time(
    rig: ApiRig, delay_ms: int, advance_s: float
) -> None:
    client = rig.client()

    assert await rig.call("POST", f"/pub?topic=t&defer={delay_ms}", b"x") == OK
    rig.advance(advance_s * 0.99)
    before = list(client.bodies)
    rig.advance(advance_s * 0.02)

    assert (before, client.bodies) == ([], [b"x"])


def binary(*bodies: bytes, count: int | None = None) -> bytes:
    parts = b"".join(pack(">i", len(body)) + body for body in bodies)
    return pack(">i", len(bodies) if count is None else count) + parts


TOO_LARGE = (413, {"message": "BODY_TOO_BIG"})


@pytest.mark.parametrize("path", ["/mpub", "/mput"])
@pytest.mark.parametrize(
    ("query", "body", "answer"),
    [
        ("", b"a\nbc", [b"a", b"bc"]),
        ("", b"\n\na\n\n", [b"a"]),
        ("", b"", []),
        ("", b"\n", []),
        ("", b"x" * MAX_MSG + b"\ny", [b"x" * MAX_MSG, b"y"]),
        ("", b"y\n" + b"x" * (MAX_MSG + 1), (413, "MSG_TOO_BIG")),
        ("", b"x\n" * (MAX_BODY // 2), [b"x"] * (MAX_BODY // 2)),
        ("", b"x\n" * (MAX_BODY // 2) + b"y", TOO_LARGE),
        ("&binary=false", b"a\nb", [b"a", b"b"]),
        ("&binary=0", b"a\nb", [b"a", b"b"]),
        ("&binary=true", binary(b"a\n", b"b"), [b"a\n", b"b"]),
        ("&binary=1", binary(b"a"), [b"a"]),
        ("&binary=yes", binary(b"a"), [b"a"]),
        ("&binary=true", binary(b"a") + b"ignored", [b"a"]),
        ("&binary=true", binary(b"x" * MAX_MSG), [b"x" * MAX_MSG]),
        ("&binary=true", binary(b"x" * (MAX_MSG + 1)), (413, "BAD_MESSAGE")),
        ("&binary=true", binary(*[b"x"] * 11), [b"x"] * 11),
        ("&binary=true", binary(*[b"x"] * 11, count=12), (413, "BAD_BODY")),
        ("&binary=true", binary(b"x", count=11), (413, "BAD_MESSAGE")),
        ("&binary=true", binary(), (413, "BAD_BODY")),
        ("&binary=true", binary(count=-1), (413, "BAD_BODY")),
        ("&binary=true", b"\0\0\0", (413, "BAD_BODY")),
        ("&binary=true", b"\0\0\0\1", (413, "BAD_MESSAGE")),
        ("&binary=true", binary(b""), (413, "BAD_MESSAGE")),
        ("&binary=true", binary(b"a", b"")[:-2], (413, "BAD_MESSAGE")),
        ("&defer=-1", b"a", (400, "INVALID_DEFER")),
    ],
)
async def test_a_body_of_many_is_taken_whole_or_refused(
    rig: ApiRig, path: str, query: str, body: bytes, answer: Any
) -> None:
    expected = OK if isinstance(answer, list) else answer

    assert await rig.call("POST", f"{path}?topic=t{query}", body) == expected

    assert published(rig) == (answer if isinstance(answer, list) else [])


@pytest.mark.parametrize(
    ("query", "code"), [("", "MISSING_ARG_TOPIC"), ("?topic=a%20b", "INVALID_TOPIC")]
)
async def test_a_body_of_many_needs_a_topic(rig: ApiRig, query: str, code: str) -> None:
    assert await rig.call("POST", f"/mpub{query}", b"a\nb") == (400, code)


@given(st.lists(st.binary(min_size=1, max_size=3 * PART_BYTES), min_size=1, max_size=6))
def test_a_large_body_has_the_messages_of_a_small_one(bodies: list[bytes]) -> None:
    lines = [body.replace(b"\n", b" ") for body in bodies]

    async def run(path: Path) -> None:
        rig = make_rig(path, max_msg_size=3 * PART_BYTES, max_body_size=10**7)
        assert await rig.call("POST", "/mpub?topic=lines", b"\n".join(lines)) == OK
        assert await rig.call("POST", "/mpub?topic=t&binary=true", binary(*bodies)) == OK
        assert published(rig, "lines") == lines
        assert published(rig) == bodies

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(run(Path(path)))


ERRORS = [
    (ClosedError(), (503, "EXITING"), Refusal.EXITING),
    (DrainingError(), (503, "DRAINING"), Refusal.DRAINING),
    (
        DepthLimitError("topic t is full", 0),
        (503, "QUEUE_FULL - topic t is full"),
        Refusal.QUEUE_FULL,
    ),
    (OSError(errno.ENOSPC, "No space"), (503, "DISK_FULL: no space"), Refusal.DISK),
    (OSError(errno.EIO, "Broken"), (503, "DISK_ERROR: broken"), Refusal.DISK),
]
TARGETS = [
    ("/pub?topic=t", b"x"),
    ("/pub?topic=t&defer=5", b"x"),
    ("/mpub?topic=t", b"x\ny"),
    ("/mpub?topic=t", b"x\n" * PART_BYTES),
]


@pytest.mark.parametrize(("error", "answer", "refusal"), ERRORS)
@pytest.mark.parametrize(("target", "body"), TARGETS)
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_refusal_is_answered_and_counted_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    answer: tuple[int, str],
    refusal: Refusal,
    target: str,
    body: bytes,
    *,
    is_late: bool,
) -> None:
    rig = make_rig(tmp_path, max_body_size=10**6)
    topic = rig.topic()
    counted: list[str] = []
    monkeypatch.setattr(Broker, "count_refusal", lambda _self, name: counted.append(name))
    receipt = Receipt(1)

    def publish(*_: object, **__: object) -> Receipt:
        if not is_late:
            raise error
        return receipt

    monkeypatch.setattr(Topic, "publish", publish)
    if isinstance(error, ClosedError) and not is_late:
        topic.refuse_publishes(lambda: error)
    call = rig.begin("POST", target, body)
    for _ in range(10):
        await asyncio.sleep(0)
    assert call.done() is (not is_late)
    receipt.settle(error)

    assert await rig.end(call) == answer
    assert rig.counts.refusals == {refusal: 1}
    # A publish that waited in line was counted by its topic.
    is_counted = isinstance(error, DepthLimitError) and not is_late
    assert counted == (["t"] if is_counted else [])
    assert topic.message_count == 0


@pytest.mark.parametrize(("target", "body"), TARGETS)
async def test_a_publish_is_answered_when_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, body: bytes
) -> None:
    rig = make_rig(tmp_path, max_body_size=10**6)
    rig.topic()
    receipt = Receipt(1)
    monkeypatch.setattr(Topic, "publish", lambda *_, **__: receipt)
    call = rig.begin("POST", target, body)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()

    receipt.settle(None)

    assert await rig.end(call) == OK
    assert not rig.counts.refusals


async def test_a_fault_of_ours_is_no_refusal(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.topic()
    receipt = Receipt(1)
    monkeypatch.setattr(Topic, "publish", lambda *_, **__: receipt)
    call = rig.begin("POST", "/pub?topic=t", b"x")
    await asyncio.sleep(0)

    receipt.settle(ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        await rig.end(call)
    assert not rig.counts.refusals


@pytest.mark.parametrize("error", [None, ClosedError()])
async def test_the_end_of_a_publish_whose_client_has_left_is_dropped(
    rig: ApiRig, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    rig.topic()
    receipt = Receipt(1)
    monkeypatch.setattr(Topic, "publish", lambda *_, **__: receipt)
    call = rig.begin("POST", "/pub?topic=t", b"x")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])

    receipt.settle(error)

    assert call.cancelled()
    assert not rig.counts.refusals


async def test_a_topic_that_refuses_publishes_says_why(rig: ApiRig) -> None:
    rig.topic().refuse_publishes(DrainingError)

    assert await rig.call("POST", "/pub?topic=t", b"x") == (503, "DRAINING")
    assert rig.counts.refusals == {Refusal.DRAINING: 1}


@pytest.mark.parametrize(
    "target", ["/mpub?topic=t", "/mpub?topic=t&defer=0", "/pub?topic=t&defer=0"]
)
async def test_a_message_without_a_delay_comes_at_once(rig: ApiRig, target: str) -> None:
    client = rig.client()

    call = rig.begin("POST", target, b"x")
    await asyncio.sleep(0)
    rig.settle()

    assert (await call).status == 200
    assert client.bodies == [b"x"]


async def test_a_message_of_a_new_topic_is_not_deferred(rig: ApiRig) -> None:
    assert await rig.call("POST", "/pub?topic=t", b"x") == OK

    assert rig.client().bodies == [b"x"]
