"""Real client libraries against our nsqd, each in a process with an event loop of its own."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.auth_server import AuthServer, allow
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import DaemonProcess

CLIENTS = Path(__file__).parent / "clients"
TOPIC = "interop"
DELAY_MS = 300
BIG = "0123456789abcdef" * 40_000
TIMEOUT_S = 40.0


@dataclass(frozen=True)
class Features:
    """What a client negotiates."""

    is_tls: bool = False
    compression: str = ""

    def __str__(self) -> str:
        return "+".join(filter(None, ["tls" if self.is_tls else "", self.compression])) or "plain"


PLAIN = Features()
UPGRADES = [
    Features(is_tls=True),
    Features(compression="snappy"),
    Features(compression="deflate"),
    Features(is_tls=True, compression="snappy"),
    Features(is_tls=True, compression="deflate"),
]


def command_of(library: str) -> list[str]:
    """Return what runs the client of a library, or skip the test."""
    if library != "nsqjs":
        return [sys.executable, "-W", "ignore", str(CLIENTS / f"{library}_client.py")]
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on PATH")
    found = subprocess.run([node, "-e", "require('nsqjs')"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("nsqjs is not installed (npm install nsqjs, and NODE_PATH to find it)")
    return [node, str(CLIENTS / "nsqjs_client.js")]


def run_client(library: str, process: DaemonProcess, **task: Any) -> dict[str, Any]:
    """Have a client publish and consume; return what it has seen."""
    defaults = {"ca_file": "", "compression": "", "secret": ""}
    told = {
        "address": process.tcp_address,
        "topic": TOPIC,
        "big": BIG,
        "delay_ms": DELAY_MS,
        **defaults,
        **task,
    }
    done = subprocess.run(
        command_of(library),
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{process.log}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check(result: dict[str, Any], process: DaemonProcess) -> None:
    """Compare what the client has seen with what it has done."""
    assert result["replies"] == ["OK"] * 4
    assert Counter(map(tuple, result["received"])) == Counter(
        {
            ("one", 1): 1,
            ("one", 2): 1,
            ("two", 1): 1,
            ("three", 1): 1,
            (sha256(BIG.encode()).hexdigest(), 1): 1,
            ("later", 1): 1,
        }
    )
    assert result["later_s"] >= DELAY_MS / 1000 - 0.01
    channel = process.wait_for_channel(TOPIC, "ch", depth=0, in_flight_count=0)
    figures = [channel[key] for key in ("message_count", "requeue_count", "timeout_count")]
    assert figures == [5, 1, 0]


@pytest.mark.parametrize("library", ["pynsq", "gnsq", "ansq", "nsqjs"])
def test_publish_and_consume(library: str, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as process:
        check(run_client(library, process), process)
        process.stop()


@pytest.mark.parametrize("features", UPGRADES, ids=str)
@pytest.mark.parametrize("library", ["pynsq", "gnsq", "nsqjs"])  # ansq has none of these
def test_tls_and_compression(library: str, features: Features, tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "certificates")
    server = make_server(tmp_path / "certificates", authority)
    flags = [f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}"]
    if features.is_tls:
        flags.append("--tls-required=tcp-https")
    with DaemonProcess(tmp_path, *flags) as process:
        result = run_client(
            library,
            process,
            ca_file=authority.cert_file if features.is_tls else "",
            compression=features.compression,
        )
        check(result, process)
        process.stop()


@pytest.mark.parametrize("library", ["pynsq", "gnsq", "ansq", "nsqjs"])
def test_auth(library: str, tmp_path: Path) -> None:
    with AuthServer() as auth_server:
        auth_server.grant("secret", allow(f"^{TOPIC}$"))
        flag = f"--auth-http-address={auth_server.address}"
        with DaemonProcess(tmp_path, flag) as process:
            check(run_client(library, process, secret="secret"), process)
            assert len(auth_server.asked) == 2
            process.stop()
