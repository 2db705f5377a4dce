"""What `nsq to-nsq` refuses; what it publishes is in tests/cli."""

import pytest

from nsqd.cli.main import main

TO = ("--destination-nsqd", "127.0.0.1:1")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("t",),
        ("not one", *TO),
        ("t", *TO, "--destination-topic", "not one"),
        ("t", "--destination-nsqd", "::"),
        ("t", *TO, "-a", "127.0.0.1:1"),
        ("t", *TO, "-a", "127.0.0.1:1", "--destination-topic", "t"),
        ("t", *TO, "--on-bad", "dead-letter"),
        ("t", *TO, "--where", "x"),
        ("t", *TO, "--mode", "everyone"),
        ("t", *TO, "--destination-opt", "nothing=1"),
    ],
)
def test_wrong_usage(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["to-nsq", "--no-context", *argv]) == 2
    assert capsys.readouterr().err.startswith("nsq: ")
