"""Names for the scripts of shells."""

from pathlib import Path

import pytest

from nsqd.cli.main import main
from nsqd.cli.setup import names


@pytest.fixture(autouse=True)
def _homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_flags_of_the_command_line_say_where_to_ask() -> None:
    words = ["--", "nsq", "tail", "-a", "h:1", "--lookupd=l", "--context", "c", "ord"]

    assert names.read_where(words) == {"nsqd": ["h:1"], "lookupd": ["l"], "context": ["c"]}
    assert names.read_where(["nsq", "tail", "-a", "h:"])["nsqd"] == []  # not written yet


def test_names_are_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def ask(where: dict[str, list[str]]) -> dict[str, list[str]]:
        asked.append(where["nsqd"])
        return {"topics": ["orders", "$(touch /tmp/x)", "a b"], "channels": ["orders/c"]}

    monkeypatch.setattr(names, "_ask", ask)

    assert main(["__complete", "topics", "--", "nsq", "tail", ""]) == 0
    assert main(["__complete", "channels", "--", "nsq", "peek", ""]) == 0
    assert capsys.readouterr().out.split() == ["orders", "orders/c"]
    assert len(asked) == 1

    main(["__complete", "topics", "--", "nsq", "tail", "-a", "other", ""])
    assert asked[1:] == [["other"]]
    monkeypatch.setattr(names, "_KEPT_S", -1.0)
    main(["__complete", "topics", "--", "nsq", "tail", ""])
    assert len(asked) == 3


def test_it_fails_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    main(["context", "add", "prod", "--nsqd", "x"])

    assert main(["__complete", "contexts"]) == 0
    assert main(["__complete", "topics", "--", "nsq", "tail", "-a", "127.0.0.1:1", ""]) == 0
    assert main(["__complete", "nonsense"]) == 2
    shown = capsys.readouterr()
    assert (shown.out.split(), shown.err) == (["prod"], "")
