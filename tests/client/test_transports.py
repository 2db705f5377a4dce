"""Case 2 to 4: every way to connect, and every way in which it fails."""

import logging
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from nsqd.client import (
    AuthError,
    ConnectError,
    Consumer,
    NegotiationError,
    NsqError,
    Observer,
    Producer,
    Tls,
    TlsError,
)
from tests.client.conftest import MakeNsqd, Nsqd, StartNsqd
from tests.support.auth_server import AuthServer, allow
from tests.support.certs import make_authority, make_client, make_server
from tests.support.waiting import until

COUNT = 10_000
BODIES = [b"%06d" % number * (number % 40 + 1) for number in range(COUNT)]


async def check_round_trip(address: str, **options: Any) -> None:
    """Publish ten thousand and consume them: equal, in order."""
    async with Producer(address, **options) as producer:
        assert await producer.publish_many("topic", BODIES) == COUNT
    found: list[bytes] = []
    async with Consumer("topic", "ch", nsqd=[address], max_in_flight=2500, **options) as consumer:
        async for message in consumer:
            found.append(message.body)
            message.fin()
            if len(found) == COUNT:
                break
    # The Go daemon keeps no order once a part of the messages is on disk; none is, here.
    assert found == BODIES


MEMORY = "--mem-queue-size=20000"


@pytest.mark.both_loops("TLS and closing are the transport's")
@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", ["plain", "tls", "mtls"])
async def test_ten_thousand_messages_come_back(
    start_nsqd: StartNsqd, tmp_path: Path, tls: str, compression: str | None
) -> None:
    authority = make_authority(tmp_path / "certs")
    server = make_server(tmp_path / "certs", authority)
    client = make_client(tmp_path / "certs", "client", authority=authority)
    flags = [f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}"]
    if tls == "mtls":
        flags += [
            "--tls-client-auth-policy=require-verify",
            f"--tls-root-ca-file={authority.cert_file}",
        ]
    nsqd = await start_nsqd(MEMORY, *(flags if tls != "plain" else []))
    options: dict[str, Any] = {"compression": compression}
    if tls == "tls":
        options["tls"] = Tls(ca=authority.cert_file)
    elif tls == "mtls":
        options["tls"] = Tls(ca=authority.cert_file, cert=client.cert_file, key=client.key_file)

    await check_round_trip(nsqd.tcp_address, **options)


async def test_an_address_of_ipv6(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(MEMORY, "--tcp-address=[::1]:0")

    await check_round_trip(f"[::1]:{nsqd.tcp_port}")


async def test_a_unix_socket(make_nsqd: MakeNsqd, tmp_path: Path) -> None:
    # The path of a unix socket has at most 107 bytes.
    path = Path(f"/tmp/nsqd-client-{os.getpid()}-{id(tmp_path)}.sock")
    nsqd = make_nsqd(MEMORY, f"--tcp-address={path}", "--http-address=127.0.0.1:0")
    nsqd.spawn()
    try:
        await until(lambda: path.is_socket() or not nsqd.is_running())
        await check_round_trip(str(path))
    finally:
        nsqd.kill()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - a moment


class Failures(Observer):
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def connect_failed(self, nsqd: str, error: Exception) -> None:
        self.errors.append(error)


async def publish_fails(address: str, error: type[NsqError], **options: Any) -> NsqError:
    async with Producer(address, timeout=10.0, **options) as producer:
        with pytest.raises(error) as caught:
            await producer.publish("topic", b"body")
    consumer = Consumer("topic", "ch", nsqd=[address], **options)
    async with consumer:
        with pytest.raises(error):
            await anext(aiter(consumer))
    return caught.value


async def nothing_came(nsqd: Nsqd) -> bool:
    """Whether nsqd has seen neither a PUB nor a SUB: each would have made the topic."""
    return not (await nsqd.get("/stats?format=json"))["topics"]


@pytest.mark.parametrize("case", ["authority", "name", "expired"])
async def test_a_server_that_is_not_trusted(
    start_nsqd: StartNsqd, tmp_path: Path, case: str
) -> None:
    authority = make_authority(tmp_path / "certs")
    other = make_authority(tmp_path / "other", "other authority")
    ends = "20210101000000Z" if case == "expired" else "20991231235959Z"
    server = make_server(tmp_path / "certs", authority, not_after=ends)
    nsqd = await start_nsqd(f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}")
    tls = {
        "expired": Tls(ca=authority.cert_file),
        "authority": Tls(ca=other.cert_file),
        "name": Tls(ca=authority.cert_file, server_name="elsewhere.example"),
    }[case]

    error = await publish_fails(nsqd.tcp_address, TlsError, tls=tls)

    assert await nothing_came(nsqd)
    assert case != "expired" or "expired" in str(error)


async def test_an_expired_certificate_of_this_client(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "certs")
    server = make_server(tmp_path / "certs", authority)
    expired = make_client(
        tmp_path / "certs", "client", authority=authority, not_after="20210101000000Z"
    )
    nsqd = await start_nsqd(
        f"--tls-cert={server.cert_file}",
        f"--tls-key={server.key_file}",
        "--tls-client-auth-policy=require-verify",
        f"--tls-root-ca-file={authority.cert_file}",
    )
    tls = Tls(ca=authority.cert_file, cert=expired.cert_file, key=expired.key_file)

    async with Producer(nsqd.tcp_address, tls=tls, timeout=10.0) as producer:
        with pytest.raises(TlsError):
            await producer.publish("topic", b"body")


async def test_tls_that_is_required_but_not_asked_for(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    server = make_server(tmp_path / "certs", make_authority(tmp_path / "certs"))
    nsqd = await start_nsqd(
        f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}", "--tls-required=tcp-https"
    )

    async with Producer(nsqd.tcp_address, timeout=10.0) as producer:
        with pytest.raises(NegotiationError, match="TLS required"):
            await producer.publish("topic", b"body")
    events = Failures()
    async with Consumer("topic", "ch", nsqd=[nsqd.tcp_address], observer=events):
        await until(lambda: events.errors)

    assert isinstance(events.errors[0], ConnectError)
    assert "TLS required" in str(events.errors[0])
    assert await nothing_came(nsqd)


async def test_tls_that_is_not_offered(nsqd: Nsqd) -> None:
    await publish_fails(nsqd.tcp_address, NegotiationError, tls=Tls(verifies=False))

    assert await nothing_came(nsqd)


async def test_compression_that_is_not_offered(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd("--snappy=false")

    await publish_fails(nsqd.tcp_address, NegotiationError, compression="snappy")

    assert await nothing_came(nsqd)


async def test_an_http_server_is_no_nsqd(nsqd: Nsqd) -> None:
    async with Producer(nsqd.http_address, timeout=1.0) as producer:
        with pytest.raises(NsqError) as caught:
            await producer.publish("topic", b"body")

    assert isinstance(caught.value.__cause__, ConnectError)


SECRET = "tiger-4711"


async def test_auth(
    start_nsqd: StartNsqd, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with AuthServer() as auth:
        auth.grant(SECRET, allow("topic"))
        nsqd = await start_nsqd(f"--auth-http-address={auth.address}")
        address = nsqd.tcp_address

        await check_round_trip(address, auth_secret=SECRET)
        wrong = await publish_fails(address, AuthError, auth_secret=SECRET + "x")
        missing = await publish_fails(address, AuthError)
        async with Producer(address, auth_secret=SECRET) as producer:
            with pytest.raises(AuthError) as other:
                await producer.publish("elsewhere", b"body")
            await producer.publish("topic", b"body")
        async with Consumer("elsewhere", "ch", nsqd=[address], auth_secret=SECRET) as consumer:
            with pytest.raises(AuthError) as unread:
                await anext(aiter(consumer))

    for error in (wrong, missing, other.value, unread.value):
        assert SECRET not in repr(error)
        assert SECRET not in str(error)
        assert SECRET not in "".join(traceback.format_exception(error))
    assert SECRET not in repr(consumer)
    assert SECRET not in caplog.text
    assert SECRET not in repr(producer)
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
