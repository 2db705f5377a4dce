"""Go's own programs, and with them go-nsq, against our nsqd."""

import contextlib
import gzip
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.auth_server import AuthServer, allow
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0
LINES = [f"message {number}" for number in range(200)]
FEATURES = {
    "plain": (),
    "snappy": ("snappy,true",),
    "deflate": ("deflate,true",),
    "tls": ("tls_v1,true", "tls_insecure_skip_verify,true"),
    "tls+snappy": ("tls_v1,true", "tls_insecure_skip_verify,true", "snappy,true"),
    "tls+deflate": ("tls_v1,true", "tls_insecure_skip_verify,true", "deflate,true"),
}

FindGo = Callable[[str], str]


@contextlib.contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program until the end of the block."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def finish(process: "subprocess.Popen[str]") -> str:
    """Wait for the end of a program that ends well, and return what it printed."""
    out, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, error
    return out


def wait_for_file(directory: Path, *, lines: int) -> Path:
    """Wait until a program has written that many lines to a file of its own choosing."""
    return wait_until(
        lambda: next(
            (path for path in directory.rglob("*.log") if path.read_text().count("\n") >= lines),
            None,
        )
    )


@pytest.mark.parametrize("features", FEATURES)
def test_to_nsq_publishes_and_nsq_tail_consumes(
    tmp_path: Path, find_go: FindGo, features: str
) -> None:
    to_nsq, nsq_tail = find_go("to_nsq"), find_go("nsq_tail")
    server = make_server(tmp_path / "certificates", make_authority(tmp_path / "certificates"))
    flags = (f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}")
    options = FEATURES[features]
    with DaemonProcess(tmp_path, *flags) as nsqd:
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        subprocess.run(
            [to_nsq, "--topic=t", address, *(f"--producer-opt={option}" for option in options)],
            input="\n".join(LINES) + "\n",
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        consumer_options = [f"--consumer-opt={option}" for option in options]

        with running(
            *(nsq_tail, "--topic=t", "--channel=c", f"-n={len(LINES)}", address),
            *consumer_options,
        ) as tail:
            printed = finish(tail)

        assert printed.splitlines() == LINES
        nsqd.stop()


def test_auth_of_go_nsq(tmp_path: Path, find_go: FindGo) -> None:
    nsq_tail = find_go("nsq_tail")
    with AuthServer() as auth_server:
        auth_server.grant("secret", allow("^t$", ("^c$",)))
        with DaemonProcess(tmp_path, f"--auth-http-address={auth_server.address}") as nsqd:
            nsqd.publish("t", b"for the authorized")

            with running(
                *(nsq_tail, "--topic=t", "--channel=c", "-n=1"),
                *(f"--nsqd-tcp-address={nsqd.tcp_address}", "--consumer-opt=auth_secret,secret"),
            ) as tail:
                assert finish(tail) == "for the authorized\n"


def test_nsq_to_file_archives_everything(tmp_path: Path, find_go: FindGo) -> None:
    nsq_to_file = find_go("nsq_to_file")
    with DaemonProcess(tmp_path) as nsqd:
        nsqd.publish("t", *[line.encode() for line in LINES])
        with running(
            *(nsq_to_file, "--topic=t", "--channel=archive", "--sync-interval=100ms"),
            *(f"--output-dir={tmp_path / 'archive'}", "--skip-empty-files"),
            f"--nsqd-tcp-address={nsqd.tcp_address}",
        ) as archiver:
            path = wait_for_file(tmp_path / "archive", lines=len(LINES))
            archiver.send_signal(signal.SIGTERM)
            finish(archiver)

        assert path.read_text().splitlines() == LINES
        nsqd.wait_for_channel("t", "archive", depth=0, in_flight_count=0)


def test_nsq_to_file_survives_a_restart_of_nsqd(tmp_path: Path, find_go: FindGo) -> None:
    """go-nsq reconnects by itself; nothing is lost between the two lives of nsqd."""
    nsq_to_file = find_go("nsq_to_file")
    with DaemonProcess(tmp_path) as nsqd:
        nsqd.keeps_ports = True
        nsqd.publish("t", *[line.encode() for line in LINES[:100]])
        with running(
            *(nsq_to_file, "--topic=t", "--channel=archive", "--sync-interval=100ms", "--gzip"),
            *(f"--output-dir={tmp_path / 'archive'}", "--consumer-opt=lookupd_poll_interval,1s"),
            f"--nsqd-tcp-address={nsqd.tcp_address}",
        ) as archiver:
            nsqd.wait_for_channel("t", "archive", depth=0, in_flight_count=0)
            nsqd.stop()
            nsqd.start()
            nsqd.publish("t", *[line.encode() for line in LINES[100:]])
            nsqd.wait_for_channel("t", "archive", depth=0, in_flight_count=0, message_count=100)
            archiver.send_signal(signal.SIGTERM)
            finish(archiver)

        text = "".join(
            gzip.decompress(path.read_bytes()).decode()
            for path in sorted((tmp_path / "archive").rglob("*.gz"))
        )
        assert sorted(text.splitlines()) == sorted(LINES)


def test_nsq_to_nsq_moves_messages(tmp_path: Path, find_go: FindGo) -> None:
    nsq_to_nsq = find_go("nsq_to_nsq")
    with DaemonProcess(tmp_path / "a") as source, DaemonProcess(tmp_path / "b") as target:
        source.publish("t", *[line.encode() for line in LINES])
        target.request("POST", "/topic/create?topic=moved")
        target.request("POST", "/channel/create?topic=moved&channel=c")
        with running(
            *(nsq_to_nsq, "--topic=t", "--channel=mover", "--destination-topic=moved"),
            f"--nsqd-tcp-address={source.tcp_address}",
            f"--destination-nsqd-tcp-address={target.tcp_address}",
        ):
            target.wait_for_channel("moved", "c", depth=len(LINES))
            source.wait_for_channel("t", "mover", depth=0, in_flight_count=0)


def test_consumers_find_nsqd_through_nsqlookupd(tmp_path: Path, find_go: FindGo) -> None:  # N-10
    nsqlookupd, nsq_tail = find_go("nsqlookupd"), find_go("nsq_tail")
    log_path = tmp_path / "nsqlookupd.log"
    with log_path.open("wb") as log:
        lookupd = subprocess.Popen(
            [nsqlookupd, "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"], stderr=log
        )
    try:

        def find_ports() -> dict[str, str] | None:
            found = re.findall(r"(TCP|HTTP): listening on \S+:(\d+)", log_path.read_text())
            return dict(found) if len(found) == 2 else None

        ports = wait_until(find_ports)
        flag = f"--lookupd-tcp-address=127.0.0.1:{ports['TCP']}"
        with DaemonProcess(tmp_path, flag) as nsqd:
            nsqd.publish("t", b"found you")
            with running(
                *(nsq_tail, "--topic=t", "--channel=c", "-n=1"),
                *(f"--lookupd-http-address=127.0.0.1:{ports['HTTP']}",),
                "--consumer-opt=lookupd_poll_interval,1s",
            ) as tail:
                assert finish(tail) == "found you\n"
    finally:
        lookupd.kill()
        lookupd.wait(TIMEOUT_S)
