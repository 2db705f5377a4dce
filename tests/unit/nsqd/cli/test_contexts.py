"""Saved contexts."""

import json
from pathlib import Path

import pytest

from nsqd.cli import contexts
from nsqd.cli.contexts import Context, Saved
from nsqd.cli.main import main


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "nsq" / "config.toml"


def test_contexts_are_added_selected_shown_and_removed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add = ["context", "add", "prod", "--lookupd", "l1", "--lookupd", "l2", "--token-file", "/t"]
    assert main([*add, "--read-only"]) == 0
    assert main(["context", "add", "a b", "--nsqd", 'quo"te']) == 0
    assert main(["context", "select", "prod"]) == 0
    assert main(["context", "ls", "--json"]) == 0

    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["name"], each["is_selected"]) for each in listed] == [
        ("prod", True),
        ("a b", False),
    ]
    assert config.stat().st_mode & 0o777 == 0o600
    assert contexts.load().contexts["a b"] == Context(nsqd=('quo"te',))
    assert main(["context", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["lookupd"], shown["read_only"]) == (["l1", "l2"], True)
    assert main(["context", "rm", "prod"]) == 0
    assert contexts.load().current is None
    assert main(["context", "show"]) == 3
    assert main(["context", "select", "prod"]) == 3


def test_a_file_that_others_read_may_name_no_secrets(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts.save(Saved({"a": Context(nsqd=("x",))}))
    config.chmod(0o644)
    assert main(["context", "ls"]) == 0

    contexts.save(Saved({"a": Context(token_file="/t")}))
    config.chmod(0o640)

    assert main(["context", "ls"]) == 5
    assert "chmod 600" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["[", "[contexts.a]\nunknown = 1", "contexts = 3", "[contexts.a]\nnsqd = 'x'"],
)
def test_a_file_that_is_wrong_is_an_error(config: Path, text: str) -> None:
    config.parent.mkdir()
    config.write_text(text)

    assert main(["context", "ls"]) == 1
