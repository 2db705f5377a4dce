"""The command itself: help, mistakes, imports."""

import importlib
import json
import subprocess
import sys

import pytest

from nsqd.cli.commands import COMMANDS
from nsqd.cli.main import main


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert main([]) == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_within_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])

    assert ended.value.code == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 90


def test_mistakes_are_exit_2_and_get_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tial"]) == 2
    assert "did you mean tail?" in capsys.readouterr().err
    assert main(["tail"]) == 2
    assert main(["pub", "t", "--nonsense"]) == 2
    assert main(["tail", "--json"]) == 2
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["code"] == 2


def test_the_environment_may_ask_for_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQ_OUTPUT", "json")

    assert main(["version"]) == 0
    assert main(["tial"]) == 2

    shown = capsys.readouterr()
    assert json.loads(shown.out)["nsq"] == "1.3.0"
    assert json.loads(shown.err)["code"] == 2


LIST = (
    "import sys; from nsqd.cli.main import main; main({!r}); print(*sys.modules, file=sys.stderr)"
)


@pytest.mark.parametrize("argv", [["--help"], ["version"], ["context", "ls", "--json"]])
def test_small_commands_import_little(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST.format(argv)], capture_output=True, text=True, check=True
    )

    loaded = set(done.stderr.split())
    assert not loaded & {"rich", "asyncio", "uvloop", "nsqd.client", "nsqd.broker.topic"}


SLOW = {"asyncio", "ssl", "dataclasses", "snappy", "httptools", "shutil", "encodings.idna"}


def test_a_tail_loads_no_more_than_it_needs() -> None:
    argv = ["tail", "t", "-n", "1", "--wait", "0.1", "-a", "127.0.0.1:1", "--no-context"]
    done = subprocess.run(
        [sys.executable, "-c", LIST.format(argv)], capture_output=True, text=True, check=True
    )

    assert not set(done.stderr.split()) & {"snappy", "httptools", "diskqueue.queue", "tomllib"}


@pytest.mark.parametrize("command", ["pub", "tail"])
def test_the_express_loads_no_event_loop(command: str) -> None:
    program = f"import sys, nsqd.cli.main, nsqd.cli.messages.{command}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert not set(done.stdout.split()) & {*SLOW, "inspect", "difflib", "pathlib", "logging"}


@pytest.mark.parametrize("package", ["diskqueue", "nsqd.client"])
def test_names_that_are_imported_late_are_there(package: str) -> None:
    module = importlib.import_module(package)

    assert {type(getattr(module, name)).__name__ for name in module.__all__} >= {"type"}
    with pytest.raises(AttributeError):
        module.no_such_name  # noqa: B018 - that is the point


def test_the_daemon_loads_neither_client_nor_commands_nor_rich() -> None:
    program = "import sys, nsqd.__main__, nsqd.daemon, lookupd.daemon; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = set(done.stdout.split())
    assert "nsqd.broker.topic" in loaded
    assert not loaded & {"nsqd.client", "nsqd.cli", "rich"}


def test_pynsq_beside_it_keeps_its_name() -> None:
    program = "import nsq, nsqd.client, sys; print(nsq.Reader, nsqd.client.Consumer)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )

    assert "nsq.reader.Reader" in done.stdout
    assert "nsqd.client.consume.consumer.Consumer" in done.stdout
