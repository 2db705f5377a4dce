"""TLS: a certificate for the daemon, made when a row needs it, and clients that only connect."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.daemon_process import DATA_PATH, DaemonError
from bench.fairness.floods import connect_greedy
from bench.fairness.row import Site
from bench.load import LoadResult, Start

FLAGS: Final = (f"--tls-cert={DATA_PATH}/cert.pem", f"--tls-key={DATA_PATH}/key.pem")
SETTINGS: Final[dict[str, object]] = {"tls_v1": True}

_COMMAND: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=localhost -keyout key.pem -out cert.pem"
)


def seed_certificate(_size: int) -> Callable[[Path], None]:
    """A function that puts cert.pem and key.pem into the data directory.

    Raises:
        DaemonError: there is no openssl, or it fails.
    """

    def seed(data_path: Path) -> None:
        if shutil.which("openssl") is None:
            raise DaemonError("a certificate needs the command openssl")
        made = subprocess.run(
            _COMMAND.split(), cwd=data_path, capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise DaemonError(f"openssl made no certificate: {made.stderr}")

    return seed


def shake_hands(site: Site, start: Start) -> LoadResult:
    """Connect with TLS and close, one connection after another.

    Raises:
        LoadError: the daemon refuses one.
    """
    start()
    count, cpu_s, begin_ns = 0, time.process_time(), time.monotonic_ns()
    deadline = time.monotonic() + site.seconds
    while time.monotonic() < deadline:
        connect_greedy(site.daemon.tcp, SETTINGS).close()
        count += 1
    return LoadResult(count, begin_ns, time.monotonic_ns(), time.process_time() - cpu_s)
