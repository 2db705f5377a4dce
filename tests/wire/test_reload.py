"""SIGHUP: certificates, tokens, log level, nsqlookupds are read again; a bad file changes none."""

import asyncio
import logging
import os
import shutil
import signal
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.certs import Credentials, make_authority, make_server
from tests.support.daemon_process import DaemonProcess
from tests.support.http_client import HttpClient
from tests.support.running_daemon import ANY_PORT, RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client, client_context
from tests.support.waiting import PATIENCE_S, until, wait_until


class Certificates:
    """The files that nsqd reads, two certificates to put there, and a client that trusts both."""

    def __init__(self, directory: Path) -> None:
        self.cert_file, self.key_file = str(directory / "cert.pem"), str(directory / "key.pem")
        authority = make_authority(directory)
        self.servers = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            self.servers.append(make_server(directory / name, authority))
        self.context = client_context(authority)
        self.install(self.servers[0])

    def install(self, server: Credentials) -> None:
        """Put a certificate where nsqd reads it, each file at once, as certbot does."""
        for source, target in (
            (server.cert_file, self.cert_file),
            (server.key_file, self.key_file),
        ):
            shutil.copy(source, f"{target}.new")
            os.replace(f"{target}.new", target)

    @property
    def options(self) -> dict[str, Any]:
        """What nsqd needs for TLS at both doors."""
        return {"tls_cert": self.cert_file, "tls_key": self.key_file, "https_address": ANY_PORT}


def der_of(server: Credentials) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(server.cert_file).read_text())


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Certificates(directory)


async def reload(nsqd: RunningDaemon, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Have nsqd reload; return what it logs about it."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    nsqd.daemon.reload()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            lines = [text for text in caplog.messages if text.startswith(("RELOAD", "--"))]
            if lines and lines[-1].startswith(("RELOAD: done", "RELOAD: failed")):
                return lines
            await asyncio.sleep(0.005)


async def connect_tls(nsqd: RunningDaemon, context: ssl.SSLContext) -> V2Client:
    client = await nsqd.connect()
    await client.identify(tls_v1=True)
    await client.start_tls(context)
    return client


async def https_certificate(nsqd: RunningDaemon, context: ssl.SSLContext) -> bytes | None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.daemon.https_port, ssl=context)
    seen: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"OK")
    writer.close()
    await writer.wait_closed()
    return seen


async def tcp_certificate(nsqd: RunningDaemon, context: ssl.SSLContext) -> bytes | None:
    client = await connect_tls(nsqd, context)
    seen = client.tls.getpeercert(binary_form=True)
    await client.publish("new", b"x")
    await client.close()
    return seen


@pytest.mark.both_loops("TLS")
async def test_new_certificates_under_load_drop_no_connection(
    start_nsqd: StartNsqd, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = await start_nsqd(**certificates.options)
    context = certificates.context
    publishers = [await connect_tls(nsqd, context) for _ in range(3)]
    consumer = await connect_tls(nsqd, context)
    await consumer.subscribe("t", rdy=100)
    pages = [
        await HttpClient.connect(("127.0.0.1", nsqd.daemon.https_port), context=context)
        for _ in range(3)
    ]
    is_over = False
    counts = [0] * 4

    async def repeat(index: int, step: Callable[[], Awaitable[object]]) -> None:
        while not is_over:
            await step()
            counts[index] += 1

    async def come_and_go() -> None:
        """Shake hands at any moment of the change, and get one of the two certificates."""
        seen = {await tcp_certificate(nsqd, context), await https_certificate(nsqd, context)}
        assert seen <= {der_of(server) for server in certificates.servers}

    async def consume() -> None:
        message = await consumer.read_message()
        consumer.send(b"FIN %b\n" % message.id)

    loads = [
        *(asyncio.create_task(repeat(0, partial(c.publish, "t", b"x"))) for c in publishers),
        *(asyncio.create_task(repeat(1, partial(p.get, "/ping"))) for p in pages),
        asyncio.create_task(repeat(2, come_and_go)),
    ]
    reading = asyncio.create_task(repeat(3, consume))
    for turn in range(6):
        server = certificates.servers[(turn + 1) % 2]
        before = list(counts)
        certificates.install(server)

        lines = await reload(nsqd, caplog)

        files = f"cert={certificates.cert_file} key={certificates.key_file}"
        assert lines == [f"RELOAD: TLS {files}", "RELOAD: done"]
        # New connections see the new one ...
        assert await tcp_certificate(nsqd, context) == der_of(server)
        assert await https_certificate(nsqd, context) == der_of(server)
        # ... and all that were there go on.
        async with asyncio.timeout(PATIENCE_S):
            while min(now - then for now, then in zip(counts, before, strict=True)) < 3:
                await asyncio.sleep(0.005)
                assert not any(task.done() for task in (*loads, reading))

    is_over = True
    await asyncio.gather(*loads)
    reading.cancel()
    for page in pages:
        await page.close()


@pytest.mark.parametrize("bad", ["cert", "key", "pair"])
async def test_a_bad_certificate_changes_nothing(
    start_nsqd: StartNsqd,
    certificates: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    bad: str,
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    nsqd = await start_nsqd(**certificates.options, http_auth_token_file=str(token))
    one, two = certificates.servers
    token.write_text("new")
    os.utime(token, ns=(0, 0))
    if bad == "pair":
        shutil.copy(two.cert_file, certificates.cert_file)
    else:
        shutil.copy(token, certificates.options[f"tls_{bad}"])

    [line] = await reload(nsqd, caplog)

    assert line.startswith("RELOAD: failed, nothing has changed - failed to build TLS config")
    assert await tcp_certificate(nsqd, certificates.context) == der_of(one)
    assert await https_certificate(nsqd, certificates.context) == der_of(one)


async def test_a_bad_token_changes_nothing_and_a_good_one_holds_at_once(
    start_nsqd: StartNsqd,
    certificates: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nsqd.config.token_file.TOKEN_CHECK_S", 1e9)
    token = tmp_path / "token"
    token.write_text("old")
    nsqd = await start_nsqd(**certificates.options, http_auth_token_file=str(token))

    async def publish(bearer: str) -> int:
        async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
            headers = {"Authorization": f"Bearer {bearer}"}
            return (await http.request("POST", "/pub?topic=t", b"x", headers=headers)).status

    certificates.install(certificates.servers[1])
    token.write_text("two words")
    [line] = await reload(nsqd, caplog)
    assert line == (
        f"RELOAD: failed, nothing has changed - --http-auth-token-file {token} does not hold"
        " one token"
    )
    assert await https_certificate(nsqd, certificates.context) == der_of(certificates.servers[0])
    assert [await publish("old"), await publish("new")] == [200, 401]

    token.write_text("new")
    lines = await reload(nsqd, caplog)
    assert f"--http-auth-token-file: token read again from {token}" in lines
    assert [await publish("old"), await publish("new")] == [401, 200]
    assert await https_certificate(nsqd, certificates.context) == der_of(certificates.servers[1])


async def test_what_was_set_over_http_stays_without_a_config_file(
    start_nsqd: StartNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # and back to what it was, at the end
    nsqd = await start_nsqd()
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        await http.request("PUT", "/config/log_level", b"debug")
        await http.request("PUT", "/config/nsqlookupd_tcp_addresses", b'["127.0.0.1:1"]')

        assert await reload(nsqd, caplog) == ["RELOAD: done"]

        assert (await http.get("/config/log_level")).body == b"1"
        assert (await http.get("/config/nsqlookupd_tcp_addresses")).body == b'["127.0.0.1:1"]'


def test_sighup_reloads_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text('nsqlookupd_tcp_addresses = ["127.0.0.1:1"]\nmem_queue_siez = 7\n')
    with DaemonProcess(tmp_path, f"--config={config}", "--max-rdy-count=7") as nsqd:
        assert 'no option has the key "mem_queue_siez", ignored; did you mean mem_queue_size?' in (
            nsqd.log
        )
        config.write_text(
            'nsqlookupd_tcp_addresses = ["127.0.0.1:2"]\nlog_level = "debug"\n'
            "mem_queue_size = 7\nmax_rdy_count = 8\n"
        )
        nsqd.send_signal(signal.SIGHUP)
        wait_until(lambda: "RELOAD: done" in nsqd.log)
        assert nsqd.request("GET", "/config/nsqlookupd_tcp_addresses") == b'["127.0.0.1:2"]'
        assert nsqd.request("GET", "/config/log_level") == b"1"
        assert nsqd.request("GET", "/config/mem_queue_size") == b"10000"
        assert nsqd.request("GET", "/config/max_rdy_count") == b"7"  # a flag wins
        log = nsqd.log
        assert "INFO: LOOKUPD(127.0.0.1:1): removing peer" in log
        assert "INFO: RELOAD: nsqlookupd addresses=127.0.0.1:2\n" in log
        assert "INFO: RELOAD: log level=debug\n" in log
        assert "WARNING: RELOAD: --mem-queue-size has changed, which takes a restart\n" in log

        config.write_text('log_level = "loud"')
        nsqd.send_signal(signal.SIGHUP)
        wait_until(lambda: "RELOAD: failed" in nsqd.log)
        assert "nothing has changed - failed parsing log_level loud" in nsqd.log
        assert nsqd.request("GET", "/config/log_level") == b"1"
        nsqd.stop()


async def test_a_reload_that_was_asked_for_before_the_start_is_done_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    caplog.set_level(logging.INFO)
    data_path = tmp_path / "early"
    data_path.mkdir()
    nsqd = RunningDaemon(data_path)
    nsqd.daemon.reload()

    await nsqd.start()

    await until(lambda: "RELOAD: done" in caplog.messages)
    await nsqd.stop()
