"""What `nsq_to_http` refuses, with Go's exit codes; what it sends is in tests/cli."""

import pytest

from nsqd.cli.go.nsq_to_http import main

AT = "--nsqd-tcp-address=127.0.0.1:1"
TO = "--post=http://127.0.0.1:1/"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "nsq_to_http v1.3.0\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ((), 1),
        (("--topic=t", TO), 1),
        (("--topic=t", AT), 1),
        ((AT, TO), 1),
        (("--topic=t", "--channel=", AT, TO), 1),
        (("--topic=t", AT, TO, "--lookupd-http-address=127.0.0.1:1"), 1),
        (("--topic=t", AT, TO, "--get=http://127.0.0.1:1/%s"), 1),
        (("--topic=t", AT, "--get=http://127.0.0.1:1/"), 1),
        (("--topic=t", AT, "--get=http://127.0.0.1:1/%s", "--content-type=x"), 1),
        (("--topic=t", AT, TO, "--content-type="), 1),
        (("--topic=t", AT, TO, "--header=x"), 1),
        (("--topic=t", AT, TO, "--sample=1.5"), 1),
        (("--topic=t", AT, "--post=nowhere"), 1),
        (("--topic=t", AT, TO, "-n=0"), 1),
        (("--topic=t", "--nsqd-tcp-address=::", TO), 1),
        (("--topic=t", AT, TO, "--sample=much"), 2),
        (("--topic=t", AT, TO, "--mode=everyone"), 2),
        (("--topic=t", AT, TO, "--consumer-opt=no_such_thing"), 2),
        (("--no-such-flag",), 2),
        (("-h",), 0),
    ],
)
def test_exit_codes(argv: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == code
    assert capsys.readouterr().err
