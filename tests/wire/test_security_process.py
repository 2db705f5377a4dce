"""What a process shows and takes: secrets in no output, bombs in little memory."""

import contextlib
import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import snappy

from tests.support.auth_server import AuthServer, allow
from tests.support.daemon_process import OURS, PATIENCE_S, REPOSITORY, DaemonProcess
from tests.support.v2_client import sized

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


class Connection:
    """A blocking V2 connection."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", daemon.ports["TCP"]), PATIENCE_S)
        self.send(b"  V2")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> tuple[int, bytes]:
        size, kind = struct.unpack(">ii", self._read(8))
        return kind, self._read(size - 4)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "closed"
            data += piece
        return data

    def read_to_the_end(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


def show(daemon: DaemonProcess, method: str, target: str, token: str = "") -> str:
    """Make a request; return everything that comes back."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.ports["HTTP"], timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, target, body=BODY if method == "POST" else None, headers=headers)
    reply = connection.getresponse()
    text = f"{reply.status} {reply.getheaders()} {reply.read().decode(errors='replace')}"
    connection.close()
    return text


def talk(daemon: DaemonProcess) -> None:
    """Use each secret where it belongs, and where it does not."""
    client = Connection(daemon)
    client.send(b"AUTH\n" + sized(GOOD_SECRET.encode()))
    assert client.read_frame()[0] == 0
    client.send(b"PUB t\n" + sized(BODY.encode()) + b"MPUB t\n" + sized(b"\0\0\0\1" + sized(b"x")))
    assert client.read_frame() == client.read_frame() == (0, b"OK")
    client.send(b"DPUB t 1\n" + sized(BODY.encode()) + b"BAD\n")
    client.read_to_the_end()
    client.close()
    for data in (
        b"AUTH\n" + sized(BAD_SECRET.encode()),
        b"AUTH " + INLINE_SECRET.encode() + b"\n",
        b"AUTH\n" + sized(BAD_SECRET.encode())[:-1],
        b"PUB t\n" + sized(BODY.encode()),
    ):
        client = Connection(daemon)
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        client.read_to_the_end()
        client.close()


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


def test_no_secret_is_in_any_output(tmp_path: Path, auth_server: AuthServer) -> None:
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
        talk(daemon)
        shown = look_around(daemon)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        shown += daemon.log

    assert [secret for secret in SECRETS if secret in shown] == []
    # So much for the silence; now for what must be there.
    assert "PROTOCOL(V2)" in shown
    assert "auth failed" in shown
    assert f"http://***@{auth_server.address}/auth?token=***" in shown
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
def test_bombs_take_little_memory(tmp_path: Path) -> None:
    """A thousandfold: an endless line, and messages that nobody wants."""
    message = b"PUB bomb#ephemeral\n" + sized(bytes(1 << 20))
    with DaemonProcess(tmp_path, "--mem-queue-size=2") as daemon:
        before_kb = peak_kb(daemon)
        for kind, pack in (("deflate", deflate), ("snappy", pack_snappy)):
            for data in (bytes(1 << 20), message):
                client = Connection(daemon)
                identity = json.dumps({"feature_negotiation": True, kind: True}).encode()
                client.send(b"IDENTIFY\n" + sized(identity))
                assert client.read_frame()[0] == 0
                with contextlib.suppress(ConnectionError):
                    for piece in pack(data, BOMB_BYTES >> 20):
                        client.send(piece)
                    client.socket.shutdown(socket.SHUT_WR)
                client.read_to_the_end()
                client.close()
        growth_kb = peak_kb(daemon) - before_kb
        found = json.loads(daemon.request("GET", "/stats?format=json&topic=bomb%23ephemeral"))
        daemon.stop()

    assert found["topics"][0]["message_count"] == 2 * (BOMB_BYTES >> 20)
    assert growth_kb < MAX_GROWTH_KB
