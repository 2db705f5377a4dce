"""What a process shows and takes: secrets in no output, bombs in little memory."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import snappy

from tests.support.auth_server import AuthServer, allow
from tests.support.daemon_process import OURS, REPOSITORY, DaemonProcess
from tests.support.v2_client import ConnectionEndedError, V2Client, sized
from tests.support.waiting import PATIENCE_S

# Each is looked for in everything that comes out.
GOOD_SECRET = "auth-secret-5d41"
BAD_SECRET = "auth-secret-wrong-7b3c"
INLINE_SECRET = "auth-secret-inline-90af"
PASSWORD = "auth-password-1f2e"
URL_TOKEN = "auth-url-token-66aa"
HTTP_TOKEN = "http-token-c0de"
WRONG_TOKEN = "http-token-wrong-beef"
QUERY_TOKEN = "query-token-4e4e"
BODY = "body-of-a-message-abab"
SECRETS = (GOOD_SECRET, BAD_SECRET, INLINE_SECRET, PASSWORD, URL_TOKEN, HTTP_TOKEN, WRONG_TOKEN,
           QUERY_TOKEN, BODY)  # fmt: skip

MAX_GROWTH_KB = 24 * 1024
BOMB_BYTES = 100 << 20


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


def show(daemon: DaemonProcess, method: str, target: str, token: str = "") -> str:
    """Make a request; return everything that comes back."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = BODY.encode() if method == "POST" else None
    reply = daemon.fetch(method, target, body, headers=headers)
    return f"{reply.status} {reply.headers} {reply.body.decode(errors='replace')}"


async def talk(daemon: DaemonProcess) -> None:
    """Use each secret where it belongs, and where it does not."""
    client = await V2Client.connect(daemon.address)
    client.command("AUTH", body=GOOD_SECRET.encode())
    await client.read_response()
    client.pub("t", BODY.encode())
    client.mpub("t", b"x")
    await client.expect_ok(2)
    client.dpub("t", 1, BODY.encode())
    client.command("BAD")
    await client.wait_closed()
    await client.close()
    for data in (
        b"AUTH\n" + sized(BAD_SECRET.encode()),
        b"AUTH " + INLINE_SECRET.encode() + b"\n",
        b"AUTH\n" + sized(BAD_SECRET.encode())[:-1],
        b"PUB t\n" + sized(BODY.encode()),
    ):
        client = await V2Client.connect(daemon.address)
        client.send(data)
        client.end_output()
        await client.wait_closed()
        await client.close()


def look_around(daemon: DaemonProcess) -> str:
    """Return what everybody can read over HTTP, and what the token opens."""
    shown = [
        show(daemon, "POST", f"/pub?topic=t&access_token={QUERY_TOKEN}", WRONG_TOKEN),
        show(daemon, "POST", f"/pub?topic=t&token={QUERY_TOKEN}", HTTP_TOKEN),
        show(daemon, "GET", f"/nowhere?secret={QUERY_TOKEN}&x=%zz"),
    ]
    assert shown[1].startswith("200")
    pages = ("info", "stats", "stats?format=json", "metrics", "ping", "topic/delete?topic=z")
    options = ("auth_http_addresses", "http_auth_token_file", "tls_key", "data_path")
    for page in (*pages, *(f"config/{option}" for option in options)):
        shown += [show(daemon, "GET", f"/{page}")]
    for page in ("cmdline", "heap", "goroutine", "threadcreate", "profile?seconds=1"):
        shown += [show(daemon, "GET", f"/debug/pprof/{page}", HTTP_TOKEN)]
    return "\n".join(shown)


async def test_no_secret_is_in_any_output(tmp_path: Path, auth_server: AuthServer) -> None:
    auth_server.grant(GOOD_SECRET, allow())
    (tmp_path / "token").write_text(HTTP_TOKEN)
    address = f"http://user:{PASSWORD}@{auth_server.address}/auth?token={URL_TOKEN}"
    bare_address = f"user:{PASSWORD}@127.0.0.1:1"
    flags = (
        "--log-level=debug",
        f"--auth-http-address={address}",
        *("--auth-http-address", bare_address),
        f"--http-auth-token-file={tmp_path / 'token'}",
        "--lookupd-tcp-address=127.0.0.1:1",
    )
    with DaemonProcess(tmp_path / "nsqd", *flags) as daemon:
        await talk(daemon)
        shown = look_around(daemon)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        shown += daemon.log

    assert [secret for secret in SECRETS if secret in shown] == []
    # So much for the silence; now for what must be there.
    assert "PROTOCOL(V2)" in shown
    assert "auth failed" in shown
    assert f"http://***@{auth_server.address}/auth?***" in shown
    assert "access_token=***" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("CONFIG",),
        (f"--auth-http-address=http://u:{PASSWORD}@h/", "--nope"),
        (f"--auth-http-address=http://u:{PASSWORD}@h/", "--data-path=/does/not/exist"),
        (f"--auth-http-address=http://u:{PASSWORD}@h/", "--auth-http-request-method=put"),
    ],
)
def test_no_secret_is_in_what_a_failed_start_says(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "config").write_text(f'auth_http_addresses = {{a = "http://u:{PASSWORD}@h/"}}\n')
    if "CONFIG" in arguments:
        arguments = (f"--config={tmp_path / 'config'}",)
    done = subprocess.run(
        [*OURS, f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def peak_kb(daemon: DaemonProcess) -> int:
    """The most memory that the daemon has ever had."""
    [pid] = re.findall(r"MainThread id: (\d+)", show(daemon, "GET", "/debug/pprof/threadcreate"))
    status = Path(f"/proc/{pid}/status").read_text()
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(peak)


def deflate(data: bytes, count: int) -> Iterator[bytes]:
    compressor = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    for _ in range(count):
        yield compressor.compress(data)
    yield compressor.flush(zlib.Z_SYNC_FLUSH)


def pack_snappy(data: bytes, count: int) -> Iterator[bytes]:
    compressor = snappy.StreamCompressor()
    for _ in range(count):
        yield compressor.compress(data)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
async def test_bombs_take_little_memory(tmp_path: Path) -> None:
    """A thousandfold: an endless line, and messages that nobody wants."""
    message = b"PUB bomb#ephemeral\n" + sized(bytes(1 << 20))
    with DaemonProcess(tmp_path, "--mem-queue-size=2") as daemon:
        before_kb = peak_kb(daemon)
        for kind, pack in (("deflate", deflate), ("snappy", pack_snappy)):
            for data in (bytes(1 << 20), message):
                client = await V2Client.connect(daemon.address)
                await client.identify(**{kind: True})
                with contextlib.suppress(ConnectionError, ConnectionEndedError):
                    for piece in pack(data, BOMB_BYTES >> 20):
                        client.send(piece)
                        await client.drain()
                    client.end_output()
                await client.wait_closed()
                await client.close()
        growth_kb = peak_kb(daemon) - before_kb
        found = json.loads(daemon.request("GET", "/stats?format=json&topic=bomb%23ephemeral"))
        daemon.stop()

    assert found["topics"][0]["message_count"] == 2 * (BOMB_BYTES >> 20)
    assert growth_kb < MAX_GROWTH_KB
