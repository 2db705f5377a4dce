"""What `nsq_to_nsq` refuses, with Go's exit codes; what it publishes is in tests/cli."""

import pytest

from nsqd.cli.go.nsq_to_nsq import main

AT = "--nsqd-tcp-address=127.0.0.1:1"
TO = "--destination-nsqd-tcp-address=127.0.0.1:2"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "nsq_to_nsq v1.3.0\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ((), 1),
        (("--topic=t", AT), 1),
        (("--topic=t", TO), 1),
        ((AT, TO), 1),
        (("--topic=t", AT, TO, "--lookupd-http-address=127.0.0.1:1"), 1),
        (("--topic=not one", AT, TO), 1),
        (("--topic=t", AT, TO, "--channel=not one"), 1),
        (("--topic=t", AT, TO, "--channel="), 1),
        (("--topic=t", AT, TO, "--destination-topic=not one"), 1),
        (("--topic=t", AT, "--destination-nsqd-tcp-address=::"), 1),
        (("--topic=t", AT, TO, "--producer-opt=no_such_thing"), 2),
        (("--topic=t", AT, TO, "--consumer-opt=no_such_thing"), 2),
        (("--no-such-flag",), 2),
        (("-h",), 0),
    ],
)
def test_exit_codes(argv: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == code
    assert capsys.readouterr().err
