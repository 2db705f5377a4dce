"""The routes that change topics and channels: what each does, refuses, and waits for."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from nsqd.api import admin
from nsqd.api.admin import LEGACY_PATHS, AdminRoutes
from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.errors import ClosedError
from nsqd.broker.health import METADATA
from nsqd.broker.queue.receipt import Receipt
from nsqd.broker.topic import Topic
from tests.support.api_rig import ApiRig

EMPTY = (200, "")
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
IO_ERROR = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def rig(tmp_path: Path) -> ApiRig:
    rig = ApiRig(tmp_path)
    AdminRoutes(rig.node).add_to(rig.router)
    rig.channel()
    rig.publish(b"1", b"2")
    rig.topic("full")
    rig.publish(b"3", topic="full")
    return rig


def describe(rig: ApiRig) -> dict[str, Any]:
    """Return the topics: whether each is paused, its depth, and the same of its channels."""
    return {
        topic.name: (
            topic.is_paused,
            topic.depth,
            {it.name: (it.is_paused, it.depth) for it in topic.channels.values()},
        )
        for topic in rig.broker.topics.values()
    }


BEFORE = {"t": (False, 0, {"c": (False, 2)}), "full": (False, 1, {})}


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize(
    ("noun", "verb", "query", "changes", "persisted"),
    [
        ("topic", "create", "topic=new", {"new": (False, 0, {})}, []),
        ("topic", "create", "topic=t", {}, []),
        ("topic", "pause", "topic=t", {"t": (True, 0, {"c": (False, 2)})}, ["t"]),
        ("topic", "unpause", "topic=t", {}, ["t"]),
        ("topic", "empty", "topic=full", {"full": (False, 0, {})}, []),
        ("topic", "delete", "topic=full", {"full": None}, ["full"]),
        ("channel", "create", "topic=t&channel=n", {"t": (False, 0, {"n": (False, 0)})}, []),
        ("channel", "create", "topic=t&channel=c", {}, []),
        ("channel", "pause", "topic=t&channel=c", {"t": (False, 0, {"c": (True, 2)})}, ["t"]),
        ("channel", "unpause", "topic=t&channel=c", {}, ["t"]),
        ("channel", "empty", "topic=t&channel=c", {"t": (False, 0, {"c": (False, 0)})}, []),
        ("channel", "delete", "topic=t&channel=c", {"t": (False, 0, {"c": None})}, ["t"]),
    ],
)
async def test_each_changes_what_it_says_and_nothing_else(
    rig: ApiRig,
    noun: str,
    verb: str,
    query: str,
    changes: dict[str, Any],
    persisted: list[str],
    *,
    is_legacy: bool,
) -> None:
    path = f"/{verb}_{noun}" if is_legacy else f"/{noun}/{verb}"
    assert (path in LEGACY_PATHS) is is_legacy
    expected: dict[str, Any] = dict(BEFORE)
    for name, change in changes.items():
        if change is None:
            del expected[name]
            continue
        is_paused, depth, channels = change
        merged = expected.get(name, (False, 0, {}))[2] | channels
        kept = {key: value for key, value in merged.items() if value is not None}
        expected[name] = (is_paused, depth, kept)

    assert await rig.call("POST", f"{path}?{query}") == EMPTY

    assert describe(rig) == expected
    assert rig.persisted == persisted
    # The old names did not look at the method.
    again = await rig.call("GET", f"{path}?{query}")
    if not is_legacy:
        assert again == (405, {"message": "METHOD_NOT_ALLOWED"})
    else:
        assert again == (EMPTY if verb != "delete" else (404, f"{noun.upper()}_NOT_FOUND"))


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "pause", "unpause"])
@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("topic/{}", (400, "MISSING_ARG_TOPIC")),
        ("topic/{}?topic=no", (404, "TOPIC_NOT_FOUND")),
        ("topic/{}?topic=a%20b", (400, "INVALID_TOPIC")),
        ("channel/{}", (400, "MISSING_ARG_TOPIC")),
        ("channel/{}?topic=t", (400, "MISSING_ARG_CHANNEL")),
        ("channel/{}?topic=a%20b&channel=c", (400, "INVALID_ARG_TOPIC")),
        ("channel/{}?topic=t&channel=a%20b", (400, "INVALID_ARG_CHANNEL")),
        ("channel/{}?topic=no&channel=c", (404, "TOPIC_NOT_FOUND")),
        ("channel/{}?topic=t&channel=no", (404, "CHANNEL_NOT_FOUND")),
    ],
)
async def test_wrong_names_change_nothing(
    rig: ApiRig, verb: str, target: str, answer: tuple[int, str]
) -> None:
    if verb == "create" and target in ("topic/{}?topic=no", "channel/{}?topic=t&channel=no"):
        answer = EMPTY
    elif target == "topic/{}?topic=a%20b" and verb not in ("create", "empty"):
        answer = (404, "TOPIC_NOT_FOUND")  # these do not look at the name, as nsqd

    assert await rig.call("POST", "/" + target.format(verb)) == answer

    if answer != EMPTY:
        assert describe(rig) == BEFORE
    assert rig.persisted == []


@pytest.mark.parametrize("noun", ["topic", "channel"])
@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ClosedError(), (503, "EXITING")),
        (NO_SPACE, (503, "DISK_FULL: no space left on device")),
        (IO_ERROR, (503, "DISK_ERROR: input/output error")),
    ],
)
async def test_a_creation_that_fails_says_why(
    rig: ApiRig,
    monkeypatch: pytest.MonkeyPatch,
    noun: str,
    error: Exception,
    answer: tuple[int, str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Broker, "ensure_topic", fail)
    monkeypatch.setattr(Topic, "ensure_channel", fail)
    query = "topic=new" if noun == "topic" else "topic=t&channel=new"

    assert await rig.call("POST", f"/{noun}/create?{query}") == answer


@pytest.mark.parametrize("query", ["/topic/create?topic={}", "/channel/create?topic=t&channel={}"])
async def test_nothing_is_created_that_a_restart_would_forget(rig: ApiRig, query: str) -> None:
    name = "t" if "/topic/" in query else "c"
    rig.broker.disk_health.repeated(METADATA, NO_SPACE)

    refused = await rig.call("POST", query.format("new"))
    there = await rig.call("POST", query.format(name))
    rig.broker.disk_health.repeated(METADATA, None)

    assert refused == (503, "DISK_FULL: no space left on device")
    assert there == EMPTY
    assert await rig.call("POST", query.format("new")) == EMPTY


DROPS = [
    (Broker, "delete_topic", "/topic/delete?topic=t"),
    (Topic, "empty", "/topic/empty?topic=t"),
    (Topic, "delete_channel", "/channel/delete?topic=t&channel=c"),
    (Channel, "empty", "/channel/empty?topic=t&channel=c"),
]


@pytest.mark.parametrize(("owner", "name", "target"), DROPS)
@pytest.mark.parametrize("error", [None, IO_ERROR])
async def test_a_drop_is_answered_when_the_disk_has_it(
    rig: ApiRig,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    target: str,
    error: OSError | None,
) -> None:
    receipt = Receipt(1)
    monkeypatch.setattr(owner, name, lambda *_: receipt)
    call = rig.begin("POST", target)
    for _ in range(5):
        await asyncio.sleep(0)
        rig.advance(1.0)
    assert not call.done()
    assert rig.persisted == []

    receipt.settle(error)

    assert await rig.end(call) == (EMPTY if error is None else (500, "INTERNAL_ERROR"))
    is_deletion = "delete" in name and error is None
    assert rig.persisted == (["t"] if is_deletion else [])


@pytest.mark.parametrize(("owner", "name", "target"), DROPS)
async def test_the_end_of_a_drop_whose_client_has_left_is_dropped(
    rig: ApiRig, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, target: str
) -> None:
    receipt = Receipt(1)
    monkeypatch.setattr(owner, name, lambda *_: receipt)
    call = rig.begin("POST", target)
    await asyncio.sleep(0)

    call.cancel()
    await asyncio.wait([call])
    receipt.settle(None)

    assert call.cancelled()


@pytest.mark.parametrize("verb", ["pause", "unpause", "delete"])
@pytest.mark.parametrize("noun", ["topic", "channel"])
async def test_a_change_is_answered_although_nsqd_dat_does_not_have_it(
    rig: ApiRig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    noun: str,
) -> None:
    monkeypatch.setattr(admin, "PERSIST_TIMEOUT_S", 0.0)
    rig.is_persist_stuck = True

    assert await rig.call("POST", f"/{noun}/{verb}?topic=t&channel=c") == EMPTY

    assert rig.persisted == ["t"]
    assert "answered before the change is in nsqd.dat" in caplog.text


async def test_all_connections_of_an_address_are_told_and_closed(rig: ApiRig) -> None:
    closed: list[bool] = []

    class Connection:
        def __init__(self, remote_address: str) -> None:
            self.remote_address = remote_address

        def close(self, *, is_told: bool) -> None:
            closed.append(is_told)

    rig.node.connections |= {Connection(address) for address in ("a:1", "a:1", "b:1")}

    assert await rig.call("POST", "/client/close") == (400, "MISSING_ARG_REMOTE_ADDRESS")
    assert await rig.call("POST", "/client/close?remote_address=c:1") == (404, "CLIENT_NOT_FOUND")
    assert closed == []
    assert await rig.call("POST", "/client/close?remote_address=a:1") == EMPTY
    assert closed == [True, True]
