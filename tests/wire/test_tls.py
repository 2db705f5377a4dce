"""TLS after IDENTIFY: the upgrade, who is let in, and who must use it (W-119 to W-121, W-127)."""

import contextlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nsqd.config.kinds import TLSRequired
from nsqd.tcp import connection
from tests.support.certs import Credentials, make_authority, make_client, make_server
from tests.support.clock import not_before
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import (
    HEARTBEAT,
    ConnectionEndedError,
    Deflate,
    Snappy,
    V2Client,
    client_context,
    sized,
)

NEGOTIATE_TLS = b"IDENTIFY\n" + sized(b'{"feature_negotiation": true, "tls_v1": true}')


@dataclass(frozen=True)
class Certificates:
    """An authority, the server's certificate, and those of clients good and bad."""

    authority: Credentials
    server: Credentials
    client: Credentials
    stranger: Credentials

    @property
    def options(self) -> dict[str, Any]:
        """What nsqd needs for TLS."""
        return {"tls_cert": self.server.cert_file, "tls_key": self.server.key_file}

    def context(self, client: Credentials | None = None) -> ssl.SSLContext:
        """Return what a client needs; with a certificate of its own, if it has one."""
        return client_context(self.authority, client)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory: Path = tmp_path_factory.mktemp("certificates")
    authority = make_authority(directory)
    return Certificates(
        authority,
        make_server(directory, authority),
        make_client(directory, "known.example", authority=authority),
        make_client(directory, "stranger.example"),
    )


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd, certificates: Certificates) -> RunningDaemon:
    """nsqd with a certificate, TLS being optional."""
    return await start_nsqd(**certificates.options)


async def expect_refusal(client: V2Client, context: ssl.SSLContext) -> None:
    """Shake hands with a server that refuses us: in TLS 1.3 we only learn of it afterwards."""
    client.send_client_hello(context)
    with contextlib.suppress(ssl.SSLError, ConnectionEndedError):
        await client.finish_handshake()
        raise AssertionError(f"let in: {await client.read_frame()!r}")


@pytest.mark.both_loops("TLS")
async def test_tls_begins_after_the_reply(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:  # W-119
    client = await nsqd.connect()
    assert (await client.identify(tls_v1=True))["tls_v1"] is True

    await client.start_tls(certificates.context())

    await client.publish("t", b"secret")
    await client.subscribe("t", rdy=1)
    assert (await client.read_message()).body == b"secret"
    stats = await nsqd.client_stats("t")
    assert stats["tls"] is True  # S-12
    assert stats["tls_version"] == "TLS1.3"


async def test_tls_of_version_1_2(nsqd: RunningDaemon, certificates: Certificates) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    context = certificates.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    await client.start_tls(context)

    await client.subscribe("t")
    assert client.tls.version() == "TLSv1.2"
    assert (await nsqd.client_stats("t"))["tls_version"] == "TLS1.2"


@pytest.mark.both_loops("TLS")
async def test_client_hello_may_follow_identify_at_once(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    """What nsqd would throw away: bytes sent ahead of the upgrade belong to TLS."""
    client = await nsqd.connect()
    client.send(NEGOTIATE_TLS)
    client.send_client_hello(certificates.context())
    reply_bytes = b""
    while not reply_bytes.endswith(b"}"):
        reply_bytes += await client.read_plain(1)

    await client.finish_handshake()

    await client.expect_ok()
    await client.publish("t", b"x")


async def test_without_negotiation_there_is_no_tls(nsqd: RunningDaemon) -> None:
    client = await nsqd.connect()
    client.send_identify(tls_v1=True)

    await client.expect_ok()
    await client.settle()


async def test_second_identify_keeps_the_tls(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context())

    reply = await client.identify(tls_v1=True, client_id="again")

    assert reply["tls_v1"] is False  # nothing is to be started
    await client.subscribe("t")
    stats = await nsqd.client_stats("t")
    assert (stats["client_id"], stats["tls"]) == ("again", True)


@pytest.mark.both_loops("TLS")
@pytest.mark.parametrize("codec", ["snappy", "deflate"])  # W-124
async def test_compression_inside_tls(
    nsqd: RunningDaemon, certificates: Certificates, codec: str
) -> None:
    client = await nsqd.connect()
    reply = await client.identify(tls_v1=True, **{codec: True})
    assert (reply["tls_v1"], reply[codec]) == (True, True)

    await client.start_tls(certificates.context())
    client.start_codec(Snappy() if codec == "snappy" else Deflate())
    await client.expect_ok()

    await client.publish("t", b"x" * 100_000)
    await client.subscribe("t", rdy=1)
    assert (await client.read_message()).body == b"x" * 100_000
    stats = await nsqd.client_stats("t")
    assert (stats["tls"], stats["snappy"], stats["deflate"]) == (
        True,
        codec == "snappy",
        codec == "deflate",
    )


@pytest.mark.both_loops("TLS")
async def test_megabytes_in_both_directions(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context())
    bodies = [bytes([number]) * 1_000_000 for number in range(5)]

    await client.publish("t", *bodies)
    await client.subscribe("t", rdy=5)

    assert [message.body for message in await client.read_messages(5)] == bodies


async def test_error_is_sent_inside_tls(nsqd: RunningDaemon, certificates: Certificates) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context())

    client.send(b"PUB t\n\0\0\0\x05four")
    client.end_output()

    await client.expect_error(b"E_BAD_MESSAGE PUB failed to read message body")


@pytest.mark.both_loops("TLS")
async def test_farewell_of_tls_ends_the_connection(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context())

    client.send_tls_farewell()

    await client.expect_closed()


@pytest.mark.both_loops("TLS")
async def test_garbage_inside_tls_ends_the_connection(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context())

    client.send_raw(b"\x17\x03\x03\x00\x20" + bytes(32))

    with pytest.raises((ssl.SSLError, ConnectionEndedError)):
        await client.read_frame()


@pytest.mark.both_loops("TLS")
@pytest.mark.parametrize("sent", [b"PUB t\n" + sized(b"x"), b"\x16\x03", b"GET / HTTP/1.1\r\n\r\n"])
async def test_bytes_that_are_no_tls_are_refused_in_the_clear(
    nsqd: RunningDaemon, sent: bytes
) -> None:  # W-120
    client = await nsqd.connect()
    await client.identify(tls_v1=True)

    client.send(sent.ljust(100, b"\0"))

    kind, text = await client.read_frame()
    assert kind == 1
    assert text.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed ")
    await client.expect_closed()


@pytest.mark.both_loops("TLS")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
async def test_handshake_has_a_deadline(
    nsqd: RunningDaemon, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:  # W-121
    assert connection.TLS_HANDSHAKE_S == 5.0
    monkeypatch.setattr(connection, "TLS_HANDSHAKE_S", 0.2)
    client = await nsqd.connect()

    with not_before(0.2):
        await client.identify(tls_v1=True)
        client.send(sent)
        await client.expect_error(b"E_IDENTIFY_FAILED IDENTIFY failed timeout")


async def test_heartbeats_begin_when_the_handshake_is_over(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    client = await nsqd.connect()
    await client.identify(tls_v1=True, heartbeat_interval=1000)

    await client.start_tls(certificates.context())

    assert await client.read_frame() == HEARTBEAT


@pytest.mark.both_loops("TLS")
async def test_client_that_leaves_during_the_handshake_does_no_harm(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    for leave in (V2Client.end_output, V2Client.reset):
        client = await nsqd.connect()
        await client.identify(tls_v1=True)
        client.send_client_hello(certificates.context())
        leave(client)
        await client.close()

    await nsqd.publish("t", b"x")


@pytest.mark.parametrize("required", [TLSRequired.TCP_ONLY, TLSRequired.EVERYWHERE])  # W-127
async def test_required_tls_forbids_everything_in_the_clear(
    start_nsqd: StartNsqd, certificates: Certificates, required: TLSRequired
) -> None:
    nsqd = await start_nsqd(tls_required=required, **certificates.options)
    for line in (b"PUB t", b"NOP", b"SUB t c", b"FIN x", b"AUTH", b"CLS", b"nonsense", b""):
        client = await nsqd.connect()
        client.send(line + b"\n")
        verb = line.partition(b" ")[0]
        await client.expect_error(b"E_INVALID cannot " + verb + b" in current state (TLS required)")

    client = await nsqd.connect()
    client.send_identify(client_id="x")  # this much is allowed
    await client.expect_ok()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context())
    await client.publish("t", b"x")


async def test_run_of_fins_in_the_clear_is_forbidden_too(
    start_nsqd: StartNsqd, certificates: Certificates
) -> None:  # W-127
    nsqd = await start_nsqd(tls_required=TLSRequired.EVERYWHERE, **certificates.options)
    client = await nsqd.connect()

    client.send(b"FIN 0123456789abcdef\n" * 10)

    await client.expect_error(b"E_INVALID cannot FIN in current state (TLS required)")


@pytest.mark.both_loops("TLS")
async def test_require_verify_wants_a_certificate_of_the_authority(
    start_nsqd: StartNsqd, certificates: Certificates
) -> None:  # W-128
    nsqd = await start_nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=certificates.authority.cert_file,
        **certificates.options,
    )
    for credentials in (None, certificates.stranger):
        client = await nsqd.connect()
        await client.identify(tls_v1=True)
        await expect_refusal(client, certificates.context(credentials))

    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(certificates.context(certificates.client))
    await client.publish("t", b"x")


async def test_require_takes_any_certificate_but_wants_one(
    start_nsqd: StartNsqd, certificates: Certificates
) -> None:  # W-128
    nsqd = await start_nsqd(tls_client_auth_policy="require", **certificates.options)
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await expect_refusal(client, certificates.context())

    for credentials in (certificates.client, certificates.stranger):
        client = await nsqd.connect()
        await client.identify(tls_v1=True)
        await client.start_tls(certificates.context(credentials))
        await client.publish("t", b"x")


async def test_policy_makes_tls_required(
    start_nsqd: StartNsqd, certificates: Certificates
) -> None:  # O-15
    nsqd = await start_nsqd(tls_client_auth_policy="require", **certificates.options)
    client = await nsqd.connect()

    client.command("NOP")

    await client.expect_error(b"E_INVALID cannot NOP in current state (TLS required)")


@pytest.mark.parametrize(
    ("minimum", "maximum", "is_accepted"),
    [
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2, False),
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, True),
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, True),
    ],
)
async def test_oldest_version_is_an_option(
    start_nsqd: StartNsqd,
    certificates: Certificates,
    minimum: ssl.TLSVersion,
    maximum: ssl.TLSVersion,
    *,
    is_accepted: bool,
) -> None:
    nsqd = await start_nsqd(tls_min_version=minimum, **certificates.options)
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    context = certificates.context()
    context.maximum_version = maximum

    if is_accepted:
        await client.start_tls(context)
    else:
        await expect_refusal(client, context)


async def test_refused_clients_do_not_hinder_others(
    nsqd: RunningDaemon, certificates: Certificates
) -> None:
    good = await nsqd.connect()
    await good.identify(tls_v1=True)
    await good.start_tls(certificates.context())
    for _ in range(20):
        bad = await nsqd.connect()
        await bad.identify(tls_v1=True)
        bad.send(b"\x16\x03\x01\x00\x05hello")
        with contextlib.suppress(ConnectionEndedError):
            await bad.read_frame()

    await good.publish("t", b"x")
