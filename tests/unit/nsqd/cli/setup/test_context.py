"""`nsq context`: what it changes, and what it says about the settings in force."""

import json
from pathlib import Path

import pytest

from nsqd.cli import contexts
from nsqd.cli.contexts import Context
from nsqd.cli.main import main


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NSQ_CONTEXT", "NSQD_TCP_ADDRESS", "NSQD_HTTP_ADDRESS", "NSQ_TLS_CA"):
        monkeypatch.delenv(name, raising=False)


def test_a_dash_selects_the_previous_context(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert main(["context", "add", name, "--nsqd", name]) == 0
    assert main(["context", "select", "-"]) == 3

    for name in ("a", "b", "-"):
        assert main(["context", "select", name]) == 0
    assert contexts.load().current == "a"
    assert main(["context", "select", "--none"]) == 0
    assert main(["context", "select", "-"]) == 0
    assert contexts.load().current == "a"
    assert main(["context", "select"]) == 2
    assert main(["context", "select", "aa"]) == 3
    assert "did you mean a?" in capsys.readouterr().err


def test_settings_are_changed_one_by_one() -> None:
    assert main(["context", "add", "a", "--nsqd", "x", "--tls", "--token-file", "/t"]) == 0

    assert main(["context", "edit", "a", "--lookupd", "l", "--no-tls", "--token-file", ""]) == 0

    assert contexts.load().contexts["a"] == Context(nsqd=("x",), lookupd=("l",))
    assert main(["context", "edit", "b", "--lookupd", "l"]) == 3


def test_the_editor_opens_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf \'[contexts.a]\\nnsqd = ["x"]\\n\' >> "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)

    assert main(["context", "edit"]) == 0

    assert contexts.load().contexts["a"] == Context(nsqd=("x",))
    assert main(["context", "edit"]) == 1  # the same table twice
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    Path(contexts.path_of_file()).unlink()
    assert main(["context", "edit"]) == 1
    assert "set EDITOR" in capsys.readouterr().err


def test_each_setting_in_force_has_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["context", "add", "prod", "--lookupd", "l", "--token-file", "/t", "--read-only"])
    monkeypatch.setenv("NSQ_TLS_CA", "/ca")

    def effective(*argv: str) -> dict[str, tuple[object, str]]:
        assert main(["context", "show", "--effective", "--json", *argv]) == 0
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return {row["setting"]: (row["value"], row["source"]) for row in rows}

    assert effective() == {
        "nsqd": (["127.0.0.1"], "default"),
        "tls_ca": ("/ca", "$NSQ_TLS_CA"),
    }
    assert effective("prod", "--tls-ca", "/mine") == {
        "context": ("prod", "--context"),
        "lookupd": (["l"], "context prod"),
        "tls_ca": ("/mine", "--tls-ca"),
        "token_file": ("/t", "context prod"),
        "read_only": (True, "context prod"),
    }
    assert effective("prod", "-a", "h") == {
        "nsqd": (["h"], "--nsqd"),
        "tls_ca": ("/ca", "$NSQ_TLS_CA"),
    }
