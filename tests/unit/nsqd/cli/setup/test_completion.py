"""Scripts for shells, made from the parsers."""

import shutil
import subprocess

import pytest

from nsqd.cli.commands import COMMANDS
from nsqd.cli.main import main
from nsqd.cli.setup.completion import read_words


def test_words_are_those_of_the_parsers() -> None:
    assert read_words("topic").actions[:2] == ["ls", "create"]
    assert {"--nsqd", "-a", "--pretty", "--channel"} <= read_words("tail").flags.keys()
    assert {"add", "select"} <= set(read_words("context").actions)
    assert "--effective" in read_words("context").flags


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_its_shell_reads_it(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0

    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("nsq topi", "topic"),
        ("nsq topic un", "unpause"),
        ("nsq tail --pri", "--print-topic"),
        ("nsq pub ''", "asked-topics"),
        ("nsq channel pause ''", "asked-channels"),
        ("nsq pub t --context ''", "asked-contexts"),
    ],
)
def test_bash_completes(words: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = f"""{capsys.readouterr().out}
nsq() {{ echo "asked-$2"; }}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _nsq
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)

    assert done.stdout.split() == [wanted]
