"""GET and POST /topic/limits: which limits are in force, and which values are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from nsqd.api.limits import LimitRoutes
from nsqd.config.limits import LIMITS, Limits
from tests.support.api_rig import ApiRig

PATH = "/topic/limits?topic=t"


@pytest.fixture
def rig(tmp_path: Path) -> ApiRig:
    rig = ApiRig(tmp_path, limits=Limits(max_depth=7))
    LimitRoutes(rig.node).add_to(rig.router)
    rig.topic()
    return rig


async def test_limits_of_flags_are_shown(rig: ApiRig) -> None:
    status, shown = await rig.call("GET", PATH)

    assert (status, shown["topic"], shown["dead_letter_topic"]) == (200, "t", None)
    assert shown["limits"].keys() == {limit.name for limit in LIMITS}
    assert {each["source"] for each in shown["limits"].values()} == {"flag"}
    assert shown["limits"]["max_depth"] == {"value": 7, "source": "flag"}


@pytest.mark.parametrize("is_query", [False, True])
async def test_limits_of_a_topic_take_the_place_of_all_before(
    rig: ApiRig, *, is_query: bool
) -> None:
    async def post(**limits: object) -> Any:
        if is_query:
            query = "".join(f"&{name}={value}" for name, value in limits.items())
            return await rig.call("POST", PATH + query)
        return await rig.call("POST", PATH, json.dumps(limits).encode())

    status, shown = await post(max_depth=5, msg_ttl="1m30s", dead_letter_topic_suffix=".dead")

    assert (status, shown["dead_letter_topic"]) == (200, "t.dead")
    assert shown["limits"]["max_depth"] == {"value": 5, "source": "topic"}
    assert shown["limits"]["msg_ttl"] == {"value": "1m30s", "source": "topic"}
    assert rig.persisted == ["t"]
    status, shown = await post(max_attempts=3)
    assert shown["limits"]["max_attempts"] == {"value": 3, "source": "topic"}
    assert shown["limits"]["max_depth"] == {"value": 7, "source": "flag"}
    assert shown["limits"]["msg_ttl"]["source"] == "flag"
    assert rig.persisted == ["t", "t"]
    assert await rig.call("GET", PATH) == (200, shown)


@pytest.mark.parametrize(
    ("query", "body", "answer"),
    [
        ("", b"x", (400, "INVALID_BODY")),
        ("", b"[" * 4000, (400, "INVALID_BODY")),
        ("", b"[]", (400, "INVALID_BODY")),
        ("", b"5", (400, "INVALID_BODY")),
        ("&max_depth=5", b"{}", (400, "INVALID_BODY")),
        ("", b'{"nosuch":1}', (400, "UNKNOWN_LIMIT")),
        ("", b'{"max_depth":-1}', (400, "INVALID_MAX_DEPTH")),
        ("", b'{"max_depth":1.5}', (400, "INVALID_MAX_DEPTH")),
        ("", b'{"max_depth":true}', (400, "INVALID_MAX_DEPTH")),
        ("", b'{"max_depth":"-1"}', (400, "INVALID_MAX_DEPTH")),
        ("", b'{"max_depth":[]}', (400, "INVALID_MAX_DEPTH")),
        ("&max_depth=1e3", b"", (400, "INVALID_MAX_DEPTH")),
        ("&max_depth=%D9%A3", b"", (400, "INVALID_MAX_DEPTH")),
        ("", b'{"msg_ttl":5}', (400, "INVALID_MSG_TTL")),
        ("&msg_ttl=5", b"", (400, "INVALID_MSG_TTL")),
        ("&msg_ttl=-5s", b"", (400, "INVALID_MSG_TTL")),
        ("&dead_letter_topic_suffix=" + "x" * 64, b"", (400, "INVALID_DEAD_LETTER_TOPIC_SUFFIX")),
        ("", b" " * 4097, (413, {"message": "BODY_TOO_BIG"})),
    ],
)
async def test_wrong_limits_change_nothing(
    rig: ApiRig, query: str, body: bytes, answer: tuple[int, Any]
) -> None:
    before = await rig.call("GET", PATH)

    assert await rig.call("POST", PATH + query, body) == answer

    assert await rig.call("GET", PATH) == before
    assert rig.persisted == []


@pytest.mark.parametrize("body", [b"{}", b'{"max_depth":null}', b'{"max_depth":"5"}'])
async def test_a_limit_may_be_null_or_digits(rig: ApiRig, body: bytes) -> None:
    status, shown = await rig.call("POST", PATH, body)

    value = {"value": 5, "source": "topic"} if b"5" in body else {"value": 7, "source": "flag"}
    assert (status, shown["limits"]["max_depth"]) == (200, value)


async def test_an_ephemeral_topic_is_not_in_nsqd_dat(rig: ApiRig) -> None:
    rig.topic("e#ephemeral")

    status, _ = await rig.call("POST", "/topic/limits?topic=e%23ephemeral&max_depth=5")

    assert (status, rig.persisted) == (200, [])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("?topic=a%20b", (400, "INVALID_TOPIC")),
        ("?topic=no", (404, "TOPIC_NOT_FOUND")),
    ],
)
async def test_a_topic_is_needed(
    rig: ApiRig, method: str, query: str, answer: tuple[int, str]
) -> None:
    assert await rig.call(method, f"/topic/limits{query}") == answer


async def test_all_limits_may_be_set_at_once(rig: ApiRig) -> None:
    body = json.dumps({limit.name: None for limit in LIMITS} | {"max_depth": 5}).encode()

    status, shown = await rig.call("POST", PATH, body)

    assert (status, shown["limits"]["max_depth"]["value"]) == (200, 5)
