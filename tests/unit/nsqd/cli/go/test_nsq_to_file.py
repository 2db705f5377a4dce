"""What `nsq_to_file` refuses, with Go's exit codes; what it writes is in tests/cli."""

import pytest

from nsqd.cli.go.nsq_to_file import main

AT = "--nsqd-tcp-address=127.0.0.1:1"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "nsq_to_file v1.3.0\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ((), 1),
        (("--topic=t",), 1),
        (("--topic=t", AT, "--lookupd-http-address=127.0.0.1:1"), 1),
        ((AT,), 1),
        ((AT, "--topic-pattern=x"), 1),
        (("--topic=t", AT, "--channel="), 1),
        (("--topic=t", AT, "--gzip-level=10"), 1),
        (("--topic=t", AT, "--log-level=loud"), 1),
        (("--topic=t", AT, "--topic-pattern=("), 1),
        (("--topic=t", AT, "--http-client-request-timeout=0s"), 1),
        (("--topic=not one", AT), 1),
        (("--topic=t", "--nsqd-tcp-address=::"), 1),
        (("--topic=t", AT, "--output-dir=/dev/null/x"), 1),
        (("--topic=t", AT, "--gzip", "--filename-format=x"), 2),
        (("--topic=t", AT, "--consumer-opt=no_such_thing,1"), 2),
        (("--no-such-flag",), 2),
        (("-h",), 0),
    ],
)
def test_exit_codes(argv: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == code
    assert capsys.readouterr().err
