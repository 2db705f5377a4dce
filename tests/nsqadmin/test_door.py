"""The door: roles, tokens, other sites, foreign hosts, files, headers."""

import asyncio
import json
import re
import ssl
import urllib.request
from pathlib import Path

import pytest

from nsqadmin.options import COMMAND
from nsqd.config.kinds import TLSRequired
from tests.nsqadmin.conftest import Cluster, StartAdmin
from tests.support.certs import make_authority, make_server
from tests.support.fake_farm import Farm
from tests.support.http_client import Reply
from tests.support.running_admin import RunningAdmin

# One call for each right, and what its holder gets in front of the farm.
CALLS = {
    "view": ("GET", "/api/v2/overview", None, 200),
    "peek": ("GET", "/api/v2/messages?topic=topic_0000", None, 200),
    "operate": ("POST", "/api/topics/topic_0000", {"action": "pause"}, 200),
    "admin": ("POST", "/api/topics/topic_0000", {"action": "empty"}, 200),
}
RIGHTS = list(CALLS)


async def start_at(farm: Farm, start_admin: StartAdmin, **options: object) -> RunningAdmin:
    return await start_admin(lookupd_http_addresses=(f"127.0.0.1:{farm.port}",), **options)


async def count_rights(admin: RunningAdmin, **headers: str) -> int:
    """Return how many of the rights a caller has; those beyond must be refused."""
    statuses = []
    for method, path, body, _ in CALLS.values():
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        statuses.append((await admin.request(method, path, body, headers=given)).status)
    count = statuses.count(200)
    assert statuses == [200] * count + [403] * (4 - count)
    return count


async def test_header_users(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(
        *(farm, start_admin),
        admin_users=("ada",),
        acl_roles=("bob:operator", "eve:reader"),
    )

    for user, count in {"ada": 4, "bob": 3, "eve": 2, "mallory": 1, "": 1, "ada, ada": 1}.items():
        assert await count_rights(admin, X_Forwarded_User=user) == count, user
    assert await count_rights(admin) == 1
    me = await admin.get("/api/v2/me", **{"X-Forwarded-User": "bob"})
    assert (me["user"], me["role"], me["auth"]) == ("bob", "operator", "header")
    denied = await admin.request("PUT", "/config/log_level", b"info")
    assert denied.error == (403, "FORBIDDEN")
    entries = (await admin.get("/api/v2/audit"))["entries"]
    assert {entry["outcome"] for entry in entries} == {"done", "refused"}


async def test_the_header_from_elsewhere_is_ignored(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(
        *(farm, start_admin), admin_users=("ada",), acl_trusted_cidrs=("10.0.0.0/8",)
    )

    assert await count_rights(admin, X_Forwarded_User="ada") == 1


@pytest.mark.parametrize(("flag", "count"), [("--read-only", 2), ("--read-only=view", 1)])
async def test_read_only(farm: Farm, start_admin: StartAdmin, flag: str, count: int) -> None:
    given = COMMAND.read([flag])
    admin = await start_at(farm, start_admin, read_only=given.read_only)

    assert await count_rights(admin) == count


async def test_tokens_and_sessions(
    farm: Farm, start_admin: StartAdmin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("admin t0ken-of-ada ada\nviewer t0ken-of-eve eve\n")
    admin = await start_at(farm, start_admin, http_auth_token_file=str(path), base_path="/q")

    async def call(method: str, target: str, body: object = None, **headers: str) -> Reply:
        return await admin.request(method, f"/q{target}", body, headers=headers)

    assert (await call("GET", "/api/v2/me")).error == (401, "UNAUTHORIZED")
    assert (await call("GET", "/api/topics")).status == 401
    assert (await call("GET", "/ping")).status == 200
    assert (await call("GET", "/")).status == 200
    bearer = {"Authorization": "Bearer t0ken-of-eve"}
    assert (await call("GET", "/api/v2/me", **bearer)).json()["user"] == "eve"
    assert (
        await call("POST", "/api/topics/topic_0000", {"action": "pause"}, **bearer)
    ).status == 403
    wrong = await call("POST", "/api/v2/session", {"token": "wrong"})
    assert wrong.error == (401, "UNAUTHORIZED")
    signed = await call("POST", "/api/v2/session", {"token": "t0ken-of-ada"})
    assert signed.json()["role"] == "admin"
    cookie = signed.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/q", "Max-Age=28800"):
        assert part in cookie
    assert "Secure" not in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert (await call("GET", "/api/v2/me", **session)).json()["user"] == "ada"
    assert (await call("DELETE", "/api/v2/session", **session)).status == 200
    assert (await call("GET", "/api/v2/me", **session)).status == 401
    for _ in range(19):
        assert (await call("POST", "/api/v2/session", {"token": "guess"})).status == 401
    for attempt in ({"token": "guess"}, {"token": "t0ken-of-ada"}):
        reply = await call("POST", "/api/v2/session", attempt)
        assert reply.error == (429, "TOO_MANY_ATTEMPTS")
    assert "t0ken" not in caplog.text
    assert "guess" not in caplog.text


async def test_pages_of_other_sites_change_nothing(
    cluster: Cluster, start_admin: StartAdmin
) -> None:
    await cluster.create("orders")
    await cluster.nsqds[0].publish("orders", b"one")
    admin = await start_admin(**cluster.options)
    form = {"Content-Type": "text/plain", "Origin": "https://evil.example"}

    for headers in (form, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        body = {"action": "empty"}
        reply = await admin.request("POST", "/api/topics/orders", body, headers=headers)
        assert reply.error == (403, "CROSS_SITE")
        assert (await admin.request("GET", "/api/topics", headers=headers)).status == 200
    assert (await cluster.nsqds[0].topic("orders"))["depth"] == 1
    entries = (await admin.get("/api/v2/audit"))["entries"]
    assert [entry["text"] for entry in entries] == ["CROSS_SITE"] * 3
    own = {"Origin": f"http://127.0.0.1:{admin.daemon.http_port}", "Sec-Fetch-Site": "same-origin"}
    reply = await admin.request("POST", "/api/topics/orders", {"action": "empty"}, headers=own)
    assert reply.json() == {"message": ""}


async def test_cors_is_for_those_who_are_named(farm: Farm, start_admin: StartAdmin) -> None:
    friend = "https://friend.example"
    admin = await start_at(farm, start_admin, http_cors_origins=(friend,))

    good = await admin.request("GET", "/api/v2/me", headers={"Origin": friend})
    other = await admin.request("GET", "/api/v2/me", headers={"Origin": "https://evil.example"})

    assert good.headers["access-control-allow-origin"] == friend
    assert "access-control-allow-origin" not in other.headers
    headers = {"Origin": friend, "Sec-Fetch-Site": "cross-site"}
    body = {"action": "pause"}
    reply = await admin.request("POST", "/api/topics/topic_0000", body, headers=headers)
    assert reply.status == 200


async def test_foreign_hosts_are_refused(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin, http_allowed_hosts=("admin.example",))

    for host, status in {"evil.example": 421, "admin.example": 200, "localhost:1": 200}.items():
        reply = await admin.request("GET", "/api/v2/me", headers={"Host": host})
        assert reply.status == status, host
    reply = await admin.request("GET", "/", headers={"Host": "evil.example"})
    assert (reply.status, reply.body) == (421, b"WRONG_HOST")


async def test_the_page_and_its_files(farm: Farm, start_admin: StartAdmin) -> None:
    admin = await start_at(farm, start_admin, base_path="/q/")

    for path in ("/", "/topics", "/topics/t", "/topics/t/c", "/nodes/a:1", "/lookup", "/counter"):
        page = await admin.request("GET", f"/q{path}")
        assert page.status == 200, path
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-store"
    page = await admin.request("GET", "/q/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for name in ("x-content-type-options", "referrer-policy", "cross-origin-opener-policy"):
        assert name in page.headers
    assert b'content="/q/"' in page.body
    assert b'content="cluster"' in page.body
    files = re.findall(r'(?:href|src)="(/q/static/[^"]+)"', page.body.decode())
    for file in files:
        found = await admin.request("GET", file)
        assert found.status == 200, file
        assert "immutable" in found.headers["cache-control"]
    file = files[-1]
    found = await admin.request("GET", file)
    tag = {"If-None-Match": found.headers["etag"]}
    assert (await admin.request("GET", file, headers=tag)).status == 304
    for path in (
        *("/q/static/../../etc/passwd", "/q/static/%2e%2e%2f%2e%2e%2fetc", "/q/static/..%5c.."),
        *("/q/static/a%00b", "/q/static//etc/passwd", "/q/static/x/main.js", "/q/fonts/x"),
        *("/q/static/..", "/q/static/../.."),
    ):
        reply = await admin.request("GET", path)
        assert (reply.status, b"NOT_FOUND" in reply.body) == (404, True), path
    assert (await admin.request("GET", "/")).status == 404


async def test_the_audit_log_fails_at_run_time(
    cluster: Cluster, start_admin: StartAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create("orders")
    admin = await start_admin(**cluster.options, audit_log=str(tmp_path / "audit.log"))

    def fail(_line: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nsqadmin.access.audit.AuditTrail._append", lambda _, line: fail(line))

    for path, body in (
        ("/api/topics/orders", {"action": "pause"}),
        ("/api/v2/actions", {"action": "pause", "targets": [{"topic": "orders"}]}),
        ("/api/v2/messages", {"topic": "orders", "body": "x"}),
    ):
        reply = await admin.request("POST", path, json.dumps(body).encode())
        assert reply.error == (503, "AUDIT_FAILED")
    assert (await cluster.nsqds[0].topic("orders"))["paused"] is False
    assert (await admin.request("GET", "/api/v2/overview")).status == 200


async def test_https_at_the_door_and_to_the_nodes(
    cluster: Cluster, start_admin: StartAdmin, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    server = make_server(tmp_path, authority)
    tls = {"tls_cert": server.cert_file, "tls_key": server.key_file}
    # It refuses plain HTTP and names its HTTPS port.
    await cluster.add_nsqd(**tls, https_address="127.0.0.1:0", tls_required=TLSRequired.EVERYWHERE)
    admin = await start_admin(
        **cluster.options, **tls, http_client_tls_root_ca_file=authority.cert_file
    )

    def fetch_overview() -> dict[str, dict[str, int]]:
        context = ssl.create_default_context(cafile=authority.cert_file)
        url = f"https://127.0.0.1:{admin.daemon.http_port}/api/v2/overview"
        with urllib.request.urlopen(url, context=context) as reply:
            found: dict[str, dict[str, int]] = json.load(reply)
            return found

    overview = await asyncio.to_thread(fetch_overview)
    assert overview["nodes"]["up"] == 3
