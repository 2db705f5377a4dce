"""GET and PUT /config/:opt: what is shown, changed and refused."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqd.api.config import ConfigRoutes
from nsqd.config import logs
from nsqd.config.options import Options
from tests.support.api_rig import ApiRig


class Rig(ApiRig):
    """The routes of options, and the addresses that were set."""

    def __init__(self, data_path: Path) -> None:
        super().__init__(data_path)
        self.addresses: list[tuple[str, ...]] = []
        self.node.options = Options(
            max_msg_size=100,
            statsd_prefix="nsq.%s",
            auth_http_addresses=("http://user:secret@auth/?key=secret",),
            lookupd_tcp_addresses=("a:1",),
        )
        self.node.registration = SimpleNamespace(set_addresses=self.addresses.append)
        self.node.broadcast_tcp_port = 11
        self.node.broadcast_http_port = 12
        ConfigRoutes(self.node).add_to(self.router)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    level = logging.getLogger().level
    yield Rig(tmp_path)
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("max_msg_size", (200, 100)),
        ("nsqlookupd_tcp_addresses", (200, ["a:1"])),
        ("broadcast_tcp_port", (200, 11)),
        ("broadcast_http_port", (200, 12)),
        ("nosuch", (400, "INVALID_OPTION")),
        ("Max_msg_size", (400, "INVALID_OPTION")),
    ],
)
async def test_an_option_is_shown(rig: Rig, key: str, answer: tuple[int, Any]) -> None:
    assert await rig.call("GET", f"/config/{key}") == answer


async def test_no_secret_is_shown(rig: Rig) -> None:
    status, shown = await rig.call("GET", "/config/auth_http_addresses")

    assert (status, len(shown)) == (200, 1)
    assert "auth" in shown[0]
    assert "secret" not in shown[0]


@pytest.mark.parametrize("level", ["debug", "INFO", "warn", "error", "fatal"])
async def test_the_log_level_changes(rig: Rig, level: str) -> None:
    status, shown = await rig.call("PUT", "/config/log_level", level.encode())

    assert status == 200
    assert rig.node.options.log_level == logs.parse_log_level(level)
    assert await rig.call("GET", "/config/log_level") == (200, shown)


@pytest.mark.parametrize(
    ("key", "body", "answer"),
    [
        ("log_level", b"", (413, "INVALID_VALUE")),
        ("log_level", b"x" * 101, (413, {"message": "INVALID_VALUE"})),
        ("log_level", b"loud", (400, "INVALID_VALUE")),
        ("log_level", b"\xff", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"x", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"[" * 99, (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b'"a:1"', (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"[5]", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b'["a:1",null]', (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b'["a:1","b\\n"]', (400, "INVALID_VALUE")),
        ("max_msg_size", b"5", (400, "INVALID_OPTION")),
        ("nosuch", b"5", (400, "INVALID_OPTION")),
    ],
)
async def test_a_wrong_value_changes_nothing(
    rig: Rig, key: str, body: bytes, answer: tuple[int, Any]
) -> None:
    before = rig.node.options

    assert await rig.call("PUT", f"/config/{key}", body) == answer

    assert (rig.node.options, rig.addresses) == (before, [])


async def test_values_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    request = rig.parse("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
    request.body = b"[" * 100_000

    with pytest.raises(Exception, match="INVALID_VALUE"):
        request.route.handler(request)


@pytest.mark.parametrize(
    ("body", "addresses"), [(["b:2", "c:3"], ("b:2", "c:3")), ([], ()), (None, ())]
)
async def test_the_addresses_of_nsqlookupds_change(
    rig: Rig, body: Any, addresses: tuple[str, ...]
) -> None:
    answer = await rig.call("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps(body).encode())

    assert answer == (200, list(addresses))
    assert rig.addresses == [addresses]
    assert rig.node.options.lookupd_tcp_addresses == addresses
