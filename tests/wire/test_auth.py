"""AUTH against a real little auth server (A-1 to A-15)."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqd.runtime.process import StartError
from nsqd.tcp import auth_patterns
from tests.support.auth_server import Asked, AuthServer, allow, answer
from tests.support.certs import make_authority, make_client, make_server
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client, client_context, mpub_body, sized


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd, auth_server: AuthServer) -> AsyncIterator[RunningDaemon]:
    """nsqd whose clients must authenticate."""
    yield await start_nsqd(auth_http_addresses=(auth_server.address,))
    auth_server.gate.set()


async def log_in(nsqd: RunningDaemon, secret: str = "secret") -> V2Client:
    """Open a connection that is authenticated."""
    client = await nsqd.connect()
    client.command("AUTH", body=secret.encode())
    reply = json.loads(await client.read_response())
    assert reply["permission_count"] > 0
    return client


@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB", "SUB"])
async def test_commands_need_auth_first(nsqd: RunningDaemon, verb: str) -> None:
    client = await nsqd.connect()
    assert (await client.identify())["auth_required"] is True

    client.command(verb, "t", "0", body=mpub_body(b"x") if verb == "MPUB" else b"x")

    await client.expect_error(f"E_AUTH_FIRST AUTH required before {verb}".encode())
    assert await nsqd.find_topic("t") is None


async def test_auth_where_none_is_configured(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd()
    client = await nsqd.connect()

    client.command("AUTH", body=b"secret")

    await client.expect_error(b"E_AUTH_DISABLED AUTH disabled")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"AUTH secret\n" + sized(b"x"), "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH \n" + sized(b"x"), "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n" + sized(b""), "E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n\xff\xff\xff\xff", "E_BAD_BODY AUTH invalid body size -1"),
        (b"AUTH\n\x7f\xff\xff\xff", "E_BAD_BODY AUTH body too big 2147483647 > 5242880"),
    ],
)
async def test_bad_auth_command(nsqd: RunningDaemon, sent: bytes, text: str) -> None:
    client = await nsqd.connect()

    client.send(sent)

    await client.expect_error(text.encode())


async def test_good_auth_is_answered_with_who_it_is(
    nsqd: RunningDaemon, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow("a"), allow("b", permissions=("publish",)))
    client = await nsqd.connect()

    client.command("AUTH", body=b"secret")

    assert await client.read_response() == (
        b'{"identity":"somebody","identity_url":"http://somebody.example","permission_count":2}'
    )
    await client.subscribe("a", "c")
    stats = await nsqd.client_stats("a", "c")  # S-12
    assert (stats["authed"], stats["auth_identity"]) == (True, "somebody")
    assert stats["auth_identity_url"] == "http://somebody.example"


async def test_second_auth_is_refused(nsqd: RunningDaemon, auth_server: AuthServer) -> None:
    auth_server.grant("secret", allow())
    client = await log_in(nsqd)

    client.command("AUTH", body=b"secret")

    await client.expect_error(b"E_INVALID AUTH already set")


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        (500, answer(allow())),
        (403, {}),
        (200, b"no json"),
        (200, {}),
        (200, answer(allow(), ttl=0)),
        (200, answer(allow(permissions=("peek",)))),
        (200, answer(allow(topic="("))),
        (200, answer(allow(channels=("[",)))),
    ],
)
async def test_bad_answer_of_the_server_is_a_failure(
    nsqd: RunningDaemon, auth_server: AuthServer, status: int, reply: Any
) -> None:
    auth_server.answers["secret"] = (status, reply)
    client = await nsqd.connect()

    client.command("AUTH", body=b"secret")

    await client.expect_error(b"E_AUTH_FAILED AUTH failed")


async def test_no_authorizations_at_all(nsqd: RunningDaemon, auth_server: AuthServer) -> None:
    auth_server.grant("secret")
    client = await nsqd.connect()

    client.command("AUTH", body=b"secret")

    await client.expect_error(b"E_UNAUTHORIZED AUTH no authorizations found")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (b"PUB u\n" + sized(b"x"), b'PUB on "u" ""'),
        (b"MPUB u\n" + sized(mpub_body(b"x")), b'MPUB on "u" ""'),
        (b"DPUB u 0\n" + sized(b"x"), b'DPUB on "u" ""'),
        (b"SUB t other\n", b'SUB on "t" "other"'),
        (b"SUB u c\n", b'SUB on "u" "c"'),
    ],
)
async def test_what_is_not_allowed_is_refused(
    nsqd: RunningDaemon, auth_server: AuthServer, command: bytes, text: bytes
) -> None:
    auth_server.grant("secret", allow("^t$", ("^c$",)))
    client = await log_in(nsqd)

    client.send(command)

    await client.expect_error(b"E_UNAUTHORIZED AUTH failed for " + text)
    assert await nsqd.find_topic("u") is None


async def test_permissions_are_apart(nsqd: RunningDaemon, auth_server: AuthServer) -> None:
    auth_server.grant("publisher", allow(permissions=("publish",)))
    auth_server.grant("consumer", allow(permissions=("subscribe",)))
    publisher = await log_in(nsqd, "publisher")
    consumer = await log_in(nsqd, "consumer")

    await publisher.publish("t", b"x")
    await consumer.subscribe("t", rdy=1)
    assert (await consumer.read_message()).body == b"x"

    publisher.command("SUB", "t", "c")
    await publisher.expect_error(b'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"')
    consumer.pub("t", b"x")
    await consumer.expect_error(b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""')


async def test_patterns_match_anywhere(nsqd: RunningDaemon, auth_server: AuthServer) -> None:
    auth_server.grant("secret", allow("mid", ("c",)))
    client = await log_in(nsqd)
    await client.subscribe("amidst", "abc")

    # Publishing counts as the channel "", which "c" does not match.
    client.pub("amidst", b"x")

    await client.expect_error(b'E_UNAUTHORIZED AUTH failed for PUB on "amidst" ""')


async def test_question_as_get(nsqd: RunningDaemon, auth_server: AuthServer) -> None:
    auth_server.grant("s&c=r t\u00e9", allow())

    await log_in(nsqd, "s&c=r t\u00e9")

    parameters = {
        "common_name": "",
        "remote_ip": "127.0.0.1",
        "secret": "s&c=r t\u00e9",
        "tls": "false",
    }
    assert auth_server.asked == [Asked("GET", "/auth", parameters)]


async def test_url_as_address_is_taken_as_it_is(
    start_nsqd: StartNsqd, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow())
    nsqd = await start_nsqd(auth_http_addresses=(f"http://{auth_server.address}/who/is?x=1",))

    await log_in(nsqd)

    [asked] = auth_server.asked
    assert asked.path == "/who/is"


async def test_question_as_post(start_nsqd: StartNsqd, auth_server: AuthServer) -> None:
    auth_server.grant("secret", allow())
    nsqd = await start_nsqd(
        auth_http_addresses=(auth_server.address,), auth_http_request_method="post"
    )

    await log_in(nsqd)

    [asked] = auth_server.asked
    assert (asked.method, asked.parameters["secret"]) == ("POST", "secret")


async def test_one_server_of_several_is_enough(
    start_nsqd: StartNsqd, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow())
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
    with AuthServer() as refusing:
        addresses = (dead, auth_server.address, refusing.address)
        nsqd = await start_nsqd(auth_http_addresses=addresses)

        for _ in range(10):
            client = await log_in(nsqd)
            await client.close()


async def test_expired_rights_are_asked_for_again(
    nsqd: RunningDaemon, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow(), ttl=1)
    client = await log_in(nsqd)
    await client.publish("t", b"1")
    assert len(auth_server.asked) == 1
    await asyncio.sleep(1.05)

    # The commands behind the one that waits are run after it, in order.
    client.send(b"PUB t\n" + sized(b"2") + b"PUB u\n" + sized(b"3") + b"SUB t c\nRDY 5\n")

    await client.expect_ok(3)
    assert [message.body for message in await client.read_messages(2)] == [b"1", b"2"]
    assert len(auth_server.asked) == 2


async def test_rights_that_are_withdrawn_end(nsqd: RunningDaemon, auth_server: AuthServer) -> None:
    auth_server.grant("forbidden", allow(), ttl=1)
    auth_server.grant("lessened", allow(), ttl=1)
    auth_server.grant("kept", allow(), ttl=1)
    forbidden = await log_in(nsqd, "forbidden")
    lessened = await log_in(nsqd, "lessened")
    kept = await log_in(nsqd, "kept")
    await kept.subscribe("t", rdy=1)
    del auth_server.answers["forbidden"]
    auth_server.grant("lessened", allow("^u$"))
    await asyncio.sleep(1.05)

    forbidden.pub("t", b"x")
    await forbidden.expect_error(b"E_AUTH_FAILED AUTH failed")
    lessened.mpub("t", b"x")
    await lessened.expect_error(b'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""')
    kept.nop()
    kept.pub("t", b"x")
    await kept.expect_ok()


async def test_certificate_is_told_to_the_server(
    start_nsqd: StartNsqd, auth_server: AuthServer, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path / "certificates")
    server = make_server(tmp_path / "certificates", authority)
    credentials = make_client(tmp_path / "certificates", "client.example", authority=authority)
    nsqd = await start_nsqd(
        auth_http_addresses=(auth_server.address,),
        tls_cert=server.cert_file,
        tls_key=server.key_file,
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=authority.cert_file,
    )
    auth_server.grant("secret", allow())
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(client_context(authority, credentials))

    client.command("AUTH", body=b"secret")

    await client.read_response()
    [asked] = auth_server.asked
    assert asked.parameters["common_name"] == "client.example"
    assert asked.parameters["tls"] == "true"


async def test_http_needs_no_auth(nsqd: RunningDaemon) -> None:
    assert (await nsqd.request("POST", "/topic/create?topic=t"))[0] == 200


async def test_commands_may_be_pipelined_behind_auth(
    nsqd: RunningDaemon, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow())
    client = await nsqd.connect()

    client.send(
        b"AUTH\n" + sized(b"secret") + b"PUB t\n" + sized(b"1") + b"MPUB t\n"
        + sized(mpub_body(b"2", b"3")) + b"SUB t c\nRDY 3\n"
    )  # fmt: skip

    assert b"permission_count" in await client.read_response()
    await client.expect_ok(3)
    assert len(await client.read_messages(3)) == 3


@pytest.mark.parametrize(
    "rest", [b"x" * 20_000, b"BAD\n", b"PUB t\n\0\0\0\0", b"NOP", b"NOP\n" * 1000]
)
async def test_whatever_follows_auth_does_no_harm(
    nsqd: RunningDaemon, auth_server: AuthServer, rest: bytes
) -> None:
    auth_server.grant("secret", allow())
    client = await nsqd.connect()

    client.send(b"AUTH\n" + sized(b"secret") + rest)
    client.end_output()

    assert b"permission_count" in await client.read_response()
    await client.wait_closed()
    await log_in(nsqd)


async def test_slow_auth_server_stops_only_who_waits_for_it(
    nsqd: RunningDaemon, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow())
    early = await log_in(nsqd)
    auth_server.gate.clear()
    waiting = [await nsqd.connect() for _ in range(5)]
    for client in waiting:
        client.send(b"AUTH\n" + sized(b"secret") + b"PUB t\n" + sized(b"late"))
    await waiting[0].expect_quiet()

    await early.publish("t", b"early")
    assert (await nsqd.topic("t"))["message_count"] == 1

    auth_server.gate.set()
    for client in waiting:
        assert b"permission_count" in await client.read_response()
        await client.expect_ok()
    assert (await nsqd.topic("t"))["message_count"] == 6


async def test_crowd_that_waits_for_auth_does_not_keep_others_from_the_disk(
    nsqd: RunningDaemon, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow())
    auth_server.gate.clear()
    for _ in range(40):
        client = await nsqd.connect()
        client.command("AUTH", body=b"secret")
    while len(auth_server.asked) < 5:  # noqa: ASYNC110 - in another thread
        await asyncio.sleep(0.01)

    async with asyncio.timeout(2):
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/topic/pause?topic=t")  # returns when nsqd.dat is written

    auth_server.gate.set()


async def test_client_that_leaves_while_it_waits_does_no_harm(
    nsqd: RunningDaemon, auth_server: AuthServer
) -> None:
    auth_server.grant("secret", allow())
    auth_server.gate.clear()
    for _ in range(3):
        client = await nsqd.connect()
        client.command("AUTH", body=b"secret")
        await client.drain()
        client.reset()

    auth_server.gate.set()

    await log_in(nsqd)


async def test_slow_auth_server_is_given_up(start_nsqd: StartNsqd, auth_server: AuthServer) -> None:
    auth_server.gate.clear()
    nsqd = await start_nsqd(
        auth_http_addresses=(auth_server.address,), http_client_request_timeout_s=0.2
    )
    client = await nsqd.connect()

    client.command("AUTH", body=b"secret")

    await client.expect_error(b"E_AUTH_FAILED AUTH failed")
    auth_server.gate.set()


async def test_auth_needs_re2(start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_patterns, "re2", None)

    with pytest.raises(StartError, match=r"--auth-http-address cannot be used: .* google-re2"):
        await start_nsqd(auth_http_addresses=("127.0.0.1:1",))

    await start_nsqd()


async def test_secret_is_in_no_log(
    nsqd: RunningDaemon, auth_server: AuthServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    auth_server.grant("hush-hush", allow())
    await log_in(nsqd, "hush-hush")
    client = await nsqd.connect()

    client.command("AUTH", body=b"hush-hush-wrong")
    await client.expect_error(b"E_AUTH_FAILED AUTH failed")

    assert "AUTH" in caplog.text
    assert "hush" not in caplog.text


async def test_no_query_of_an_auth_server_is_shown(
    start_nsqd: StartNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    address = "http://user:hunter2@127.0.0.1:1/auth?plain=hunter2"
    nsqd = await start_nsqd(auth_http_addresses=(address,))
    client = await nsqd.connect()
    client.send(b"AUTH\n" + sized(b"x"))
    await client.expect_error(b"E_AUTH_FAILED AUTH failed")

    status, shown = await nsqd.request("GET", "/config/auth_http_addresses")

    assert (status, shown) == (200, b'["http://***@127.0.0.1:1/auth?***"]')
    assert "127.0.0.1:1/auth" in caplog.text
    assert "hunter2" not in caplog.text
