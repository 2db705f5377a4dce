"""The nsqd command: exit codes, what is printed where, and what the daemon is handed."""

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import uvloop

from nsqd.__main__ import main
from nsqd.config.options import Options

ROOT = Path(__file__).parents[3]
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


class FakeDaemon:
    """Stands in for nsqd.daemon: notes what it is asked to run."""

    def __init__(self) -> None:
        self.runs: list[tuple[Options, LoopFactory]] = []
        self.exit_code = 0

    def run(
        self,
        options: Options,
        *,
        loop_factory: LoopFactory,
        read_options: Callable[[], Options],
    ) -> int:
        logging.getLogger("nsqd.daemon").info("running")
        assert read_options() == options
        self.runs.append((options, loop_factory))
        return self.exit_code


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    fake = FakeDaemon()
    module = ModuleType("nsqd.daemon")
    module.run = fake.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nsqd.daemon", module)
    return fake


@pytest.fixture(autouse=True)
def _restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_options_reach_the_daemon_and_its_exit_code_comes_back(daemon: FakeDaemon) -> None:
    daemon.exit_code = 3

    assert main(["--mem-queue-size=7"]) == 3

    [(options, loop_factory)] = daemon.runs
    assert options == Options(mem_queue_size=7)
    assert loop_factory is uvloop.new_event_loop


def test_argv_of_the_process_is_the_default(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["nsqd", "--mem-queue-size=7"])

    assert main() == 0

    assert daemon.runs[0][0].mem_queue_size == 7


def test_logging_is_configured_before_the_daemon_runs(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--log-prefix=[mine] "])

    assert re.fullmatch(r"\[mine\] \S+ \S+ INFO: running\n", capsys.readouterr().err)


def test_log_level_reaches_the_log(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:  # O-10
    main(["--log-level=error"])

    assert capsys.readouterr().err == ""


def test_without_uvloop_asyncio_serves(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    assert main([]) == 0

    assert daemon.runs[0][1] is None
    assert "WARNING: uvloop is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-version", "--version=true"])
def test_version_goes_to_stdout(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], flag: str
) -> None:  # O-2
    assert main([flag, "--config=/no/such/file"]) == 0

    output = capsys.readouterr()
    assert re.match(r"nsqd v1\.3\.0 \(built w/python\d+\.\d+\.\d+.*\)\n$", output.out)
    assert output.err == ""
    assert daemon.runs == []


def test_help_goes_to_stderr_with_exit_code_0(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:  # O-2
    assert main(["-h"]) == 0

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Usage: nsqd ")
    assert "--tcp-address" in output.err
    assert daemon.runs == []


def test_unknown_flag_exits_2(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:  # O-2
    assert main(["--no-such-flag=1"]) == 2

    error = capsys.readouterr().err
    assert error.startswith("flag provided but not defined: -no-such-flag\nUsage: nsqd ")
    assert daemon.runs == []


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ('log_level = "loud"', "FATAL: failed parsing log_level loud"),
        (
            "mem_queue_size = true",
            "ERROR: Resolve failed to coerce value true (10000) for field mem_queue_size"
            " - invalid int value type bool",
        ),
    ],
)
def test_bad_config_exits_1_with_nsqds_prefix(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], tmp_path: Path, toml: str, line: str
) -> None:  # O-3, O-10
    path = tmp_path / "nsqd.cfg"
    path.write_text(toml)

    assert main([f"--config={path}", "--log-prefix=[mine] "]) == 1

    assert daemon.runs == []
    assert re.fullmatch(
        r"\[nsqd\] \d{4}/\d\d/\d\d [\d:]{8}\.\d{6} " + re.escape(line) + "\n",
        capsys.readouterr().err,
    )


def test_missing_config_file_exits_1(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config=/no/such/file"]) == 1

    assert capsys.readouterr().err.endswith(
        " FATAL: failed to load config file /no/such/file"
        " - open /no/such/file: no such file or directory\n"
    )


def test_python_dash_m_nsqd_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsqd", "--nope"],
        capture_output=True,
        cwd=ROOT,
        timeout=30,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(b"flag provided but not defined: -nope\n")


def test_version_does_not_load_the_daemon() -> None:
    probe = (
        "import sys; from nsqd.__main__ import main; code = main(['--version']);"
        " sys.exit(code or 'uvloop' in sys.modules or 'nsqd.daemon' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, timeout=30, check=False)

    assert done.returncode == 0
