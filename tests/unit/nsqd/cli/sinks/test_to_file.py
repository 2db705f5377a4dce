"""What `nsq to-file` refuses; what it writes is in tests/cli."""

from pathlib import Path

import pytest

from nsqd.cli.main import main


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("t",), 2),
        (("--output-dir", "out"), 2),
        (("not one", "--output-dir", "out"), 2),
        (("t", "--channel", "not one", "--output-dir", "out"), 2),
        (("t", "--output-dir", "out", "--filename-format", "x"), 2),
        (("t", "--output-dir", "out", "--sync-interval", "0"), 2),
        (("t", "--output-dir", "out", "--topic-pattern", "("), 2),
        (("t", "--output-dir", "out", "--max-attempts", "3"), 2),
        (("t", "--output-dir", "file"), 1),
    ],
)
def test_exit_codes(
    argv: tuple[str, ...],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    assert main(["to-file", "--no-context", *argv]) == code
    assert capsys.readouterr().err.startswith("nsq: ")
