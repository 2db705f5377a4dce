"""--http-cors-origin and --http-auth-token-file on the real daemon."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqd.runtime.process import StartError
from tests.support.http_client import HttpClient
from tests.support.running_daemon import StartNsqd

TOKEN = {"Authorization": "Bearer sesame"}


@pytest.fixture
async def guarded(start_nsqd: StartNsqd, tmp_path: Path) -> AsyncIterator[HttpClient]:
    path = tmp_path / "token"
    path.write_text("sesame\n")
    nsqd = await start_nsqd(
        http_auth_token_file=str(path), http_cors_origins=("https://admin.example",)
    )
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/pub?topic=t"),
        ("POST", "/mpub?topic=t"),
        ("POST", "/topic/create?topic=t"),
        ("POST", "/channel/create?topic=t&channel=c"),
        ("PUT", "/config/log_level"),
        ("POST", "/drain"),
        ("POST", "/debug/freememory"),
        ("PUT", "/debug/setblockrate?rate=0"),
        ("GET", "/create_topic?topic=t"),
        ("POST", "/put?topic=t"),
        ("GET", "/topic/peek?topic=t"),
    ],
)
async def test_changes_need_the_token(guarded: HttpClient, method: str, target: str) -> None:
    refused = await guarded.request(method, target, b"info")
    assert refused.error == (401, "UNAUTHORIZED")
    assert refused.headers["www-authenticate"].startswith("Bearer")

    # With the token the request is dealt with, whatever comes of it.
    await guarded.request("POST", "/topic/create?topic=t", headers=TOKEN)
    if target != "/drain":
        allowed = await guarded.request(method, target, b"info", headers=TOKEN)
        assert allowed.status == 200


@pytest.mark.parametrize("target", ["/ping", "/ready", "/info", "/stats", "/metrics", "/config/id"])
async def test_reading_does_not(guarded: HttpClient, target: str) -> None:
    assert (await guarded.get(target)).status == 200


async def test_a_page_of_the_allowed_origin_can_publish(guarded: HttpClient) -> None:
    origin = {"Origin": "https://admin.example"}

    preflight = await guarded.request(
        "OPTIONS", "/pub?topic=t", headers=origin | {"Access-Control-Request-Method": "POST"}
    )
    refused = await guarded.request("POST", "/pub?topic=t", b"x", headers=origin)
    published = await guarded.request("POST", "/pub?topic=t", b"x", headers=origin | TOKEN)

    assert preflight.status == 200
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    assert (refused.status, published.status) == (401, 200)
    for reply in (preflight, refused, published):
        assert reply.headers["access-control-allow-origin"] == "https://admin.example"


async def test_other_origins_are_not_named(guarded: HttpClient) -> None:
    headers = {"Origin": "https://evil.example"}

    reply = await guarded.request("GET", "/stats", headers=headers)

    assert "access-control-allow-origin" not in reply.headers


async def test_off_by_default(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        reply = await http.request("POST", "/pub?topic=t", b"x")
        other = await http.request("GET", "/ping", headers={"Origin": "https://any.example"})

    assert reply.status == 200
    assert not [name for name in other.headers if name.startswith("access-control")]
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_without_its_file_nsqd_does_not_start(start_nsqd: StartNsqd) -> None:
    with pytest.raises(StartError, match="failed to read --http-auth-token-file"):
        await start_nsqd(http_auth_token_file="/nonexistent/token")


async def test_where_clients_must_auth_peeking_needs_the_token(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    """Else it would show strangers the bodies that SUB does not."""
    (tmp_path / "token").write_text("sesame")
    for token_file in ("", str(tmp_path / "token")):
        data_path = tmp_path / f"data{len(token_file)}"
        data_path.mkdir()
        nsqd = await start_nsqd(
            auth_http_addresses=("127.0.0.1:1",),
            http_auth_token_file=token_file,
            data_path=data_path,
        )
        async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
            await client.request("POST", "/topic/create?topic=t", headers=TOKEN)
            reply = await client.request("GET", "/topic/peek?topic=t", headers=TOKEN)

        if token_file:
            assert reply.status == 200
        else:
            assert reply.error == (403, "HTTP_AUTH_TOKEN_FILE_REQUIRED")
