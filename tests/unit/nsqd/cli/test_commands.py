"""The table of commands."""

import argparse

import pytest

from nsqd.cli.commands import COMMANDS, Parser, make_parser
from nsqd.cli.output import CliError, ExitCode


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_module_and_a_sentence(name: str) -> None:
    parser, module = make_parser(name)

    assert parser.prog == f"nsq {name}"
    assert callable(module.run)
    assert len(COMMANDS[name][1]) < 64


def test_a_wrong_argument_is_an_error_and_no_exit() -> None:
    parser = Parser("nsq x")
    parser.add_argument("-n", type=int)

    with pytest.raises(CliError) as raised:
        parser.parse_args(["-n", "x"])

    assert raised.value.code == ExitCode.USAGE
    assert isinstance(parser, argparse.ArgumentParser)
