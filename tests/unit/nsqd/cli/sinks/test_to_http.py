"""What `nsq to-http` refuses; what it sends is in tests/cli."""

import pytest

from nsqd.cli.main import main

TO = ("--post", "http://127.0.0.1:1/")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("t",),
        ("not one", *TO),
        ("t", *TO, "--get", "http://127.0.0.1:1/{body}"),
        ("t", "--get", "http://127.0.0.1:1/"),
        ("t", "--post", "nowhere"),
        ("t", *TO, "--header", "x"),
        ("t", *TO, "--drop-on", "200"),
        ("t", *TO, "--drop-on", "x"),
        ("t", *TO, "--mode", "everyone"),
        ("t", *TO, "--max-attempts", "3"),
    ],
)
def test_wrong_usage(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["to-http", "--no-context", *argv]) == 2
    assert capsys.readouterr().err.startswith("nsq: ")
