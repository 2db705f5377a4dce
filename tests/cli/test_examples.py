"""The examples in the help run: in this process, and not for long."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.cli.commands import COMMANDS, find_examples
from nsqd.cli.main import main
from nsqd.cli.output import ExitCode
from tests.cli.conftest import run_briefly
from tests.support.daemon_process import DaemonProcess

# They name machines that do not exist, or become another program.
NOT_HERE = ("10.0.0.", "lookup-", "nsq disk", "nsq spark", "/var/")


def lines() -> list[str]:
    found = []
    for name in COMMANDS:
        found += [line for line in find_examples(name) if not any(h in line for h in NOT_HERE)]
    return found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """nsqd with what the examples name."""
    with DaemonProcess(tmp_path_factory.mktemp("nsqd")) as nsqd:
        for topic in ("orders", "orders.dead", "test.a"):
            nsqd.request("POST", f"/topic/create?topic={topic}")
        nsqd.request("POST", "/channel/create?topic=orders&channel=billing")
        yield nsqd


@pytest.mark.parametrize("line", lines())
def test_an_example_runs(
    line: str,
    daemon: DaemonProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NSQD_TCP_ADDRESS", daemon.tcp_address)
    monkeypatch.setenv("NSQD_HTTP_ADDRESS", daemon.http_address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    main(["context", "add", "prod", "--nsqd", daemon.tcp_address])
    _, *argv = shlex.split(line[line.index("nsq ") :].partition(" > ")[0])

    code = run_briefly(argv)

    shown = capfd.readouterr()
    allowed = {ExitCode.DONE, ExitCode.INTERRUPTED}
    if argv[0] in ("check", "doctor"):
        allowed |= {ExitCode.FAILED, ExitCode(2)}  # something is wrong with this little cluster
    assert code in allowed, shown
    assert "Traceback" not in shown.err
