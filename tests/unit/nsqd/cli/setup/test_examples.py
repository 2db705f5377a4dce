"""`nsq examples`, and the examples in the help."""

import json
import shlex

import pytest

from nsqd.cli.commands import COMMANDS, find_examples, make_parser
from nsqd.cli.main import main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_three_examples_that_its_parser_takes(name: str) -> None:
    lines = find_examples(name)

    assert len(lines) == 3
    parser, _ = make_parser(name)
    for line in lines:
        program, given, *argv = shlex.split(line[line.index("nsq ") :].partition(" > ")[0])
        assert program == "nsq"
        assert given in (name, "--version")
        (parser.parse_intermixed_args if name == "pub" else parser.parse_args)(argv)


def test_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    shown = capsys.readouterr().out
    assert "nsq tail orders" in shown
    assert main(["examples", "pub", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["command"] == "pub"
    assert main(["examples", "pbu"]) == 2
    assert "did you mean pub?" in capsys.readouterr().err
