"""What `nsq each` refuses; what it runs is in tests/cli."""

import pytest

from nsqd.cli.main import main


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("t", "c"),
        ("not one", "c", "--", "true"),
        ("t", "not one", "--", "true"),
        ("t", "c", "--", "no-such-program"),
        ("t", "c", "-j", "0", "--", "true"),
        ("t", "c", "--opt", "nothing=1", "--", "true"),
    ],
)
def test_wrong_usage(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["each", "--no-context", *argv]) == 2
    assert capsys.readouterr().err.startswith("nsq: ")
