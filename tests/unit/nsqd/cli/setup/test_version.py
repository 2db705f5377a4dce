"""`nsq version`."""

import json

import pytest

from nsqd import __version__
from nsqd.cli.main import main


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": __version__, "nsq": "1.3.0"}
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"nsq {__version__} ")
