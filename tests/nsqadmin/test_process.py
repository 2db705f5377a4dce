"""nsqadmin as a process: start, log, signals, exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon_process import REPOSITORY
from tests.support.http_client import fetch
from tests.support.waiting import PATIENCE_S, wait_until

COMMAND = (sys.executable, "-m", "nsqadmin")


def run(*flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, *flags],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "pattern"),
    [
        (["--version"], 0, r"nsqadmin v1\.3\.0 \(built w/python"),
        (
            [],
            1,
            r"\[nsqadmin\] .* FATAL: failed to instantiate nsqadmin - --nsqd-http-address or"
            r" --lookupd-http-address required",
        ),
        (["--none"], 2, r"flag provided but not defined: -none"),
        (
            ["--nsqd-http-address=a:1", "--http-auth-token-file=/nonexistent"],
            1,
            r"FATAL: failed to instantiate nsqadmin - failed to read --http-auth-token-file",
        ),
        (
            ["--nsqd-http-address=a:1", "--audit-log=/"],
            1,
            r"FATAL: failed to instantiate nsqadmin - failed to open --audit-log",
        ),
    ],
)
def test_how_it_ends(flags: list[str], code: int, pattern: str) -> None:
    status, output = run(*flags)

    assert status == code
    assert re.search(pattern, output), output


def test_it_serves_before_anything_resolves_and_stops_with_code_0(tmp_path: Path) -> None:
    config = tmp_path / "nsqadmin.cfg"
    config.write_text('nsqlookupd_http_addresses = ["nowhere.invalid:4161"]\n')
    log = tmp_path / "log"
    flags = (f"--config={config}", "--http-address=127.0.0.1:0", "--admin-user=ada")
    with log.open("wb") as file:
        process = subprocess.Popen([*COMMAND, *flags], cwd=REPOSITORY, stderr=file)
    try:
        port = wait_until(
            lambda: re.search(r"HTTP: listening on 127\.0\.0\.1:(\d+)$", log.read_text(), re.M)
        )[1]
        address = ("127.0.0.1", int(port))
        assert fetch(address, "GET", "/ping").body == b"OK"
        assert b"<html" in fetch(address, "GET", "/").body
        wait_until(
            lambda: b"no such host" in fetch(address, "GET", "/api/v2/overview").body or None
        )
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert "stopping exit_code=0" in log.read_text()
