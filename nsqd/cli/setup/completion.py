"""`nsq completion`: scripts for bash, zsh and fish, made from the parsers of the commands.

Commands, actions and flags stand in the script. Names of topics, channels and contexts are asked of
`nsq __complete`, which has 300 ms.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from nsqd.cli.commands import COMMANDS, COMPLETE, make_parser
from nsqd.cli.output import ExitCode

EXAMPLES: Final = {
    "completion": """examples:
  nsq completion bash > ~/.local/share/bash-completion/completions/nsq
  nsq completion zsh > ~/.zfunc/_nsq
  nsq completion fish > ~/.config/fish/completions/nsq.fish"""
}
SHELLS: Final = ("bash", "zsh", "fish")
# The kind of name that the words of a command, or the value of a flag, are.
_NAMES_OF_COMMANDS: Final = {
    **dict.fromkeys(("pub", "tail", "stat", "limits", "topic", "to-file", "to-http"), "topics"),
    **dict.fromkeys(("to-nsq", "each", "dead"), "topics"),
    **dict.fromkeys(("peek", "channel", "check"), "channels"),
    "context": "contexts",
}
_NAMES_OF_FLAGS: Final = {"--topic": "topics", "--context": "contexts", "--nsqd": "nodes"}


@dataclass(slots=True)
class Words:
    """The flags and kinds of words of a command."""

    command: str
    help_text: str
    actions: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)  # with their help

    @property
    def names(self) -> str:
        """The kind of names that the command takes; empty for none."""
        return _NAMES_OF_COMMANDS.get(self.command, "")


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq completion`."""
    words = [read_words(name) for name in COMMANDS]
    make = {"bash": make_bash, "zsh": make_zsh, "fish": make_fish}[options.shell]
    print("\n".join(make(words)))
    return ExitCode.DONE


def read_words(name: str) -> Words:
    """Return the actions and flags of a command, as its parser has them."""
    parser, _ = make_parser(name)
    words = Words(name, COMMANDS[name][1])
    waiting: list[argparse.ArgumentParser] = [parser]
    while waiting:
        for action in waiting.pop()._actions:  # noqa: SLF001 - argparse shows them nowhere else
            for flag in action.option_strings:
                words.flags.setdefault(flag, _one_line(action.help))
            if isinstance(action.choices, dict):
                words.actions += map(str, action.choices)
                waiting += list(action.choices.values())
            elif action.choices is not None and not action.option_strings:
                words.actions += map(str, action.choices)
    return words


def _one_line(text: str | None) -> str:
    return (text or "").replace("%%", "%").split(";")[0]


def make_bash(commands: list[Words]) -> Iterator[str]:
    """Yield the lines of the script for bash."""
    every = " ".join(each.command for each in commands)
    yield "# nsq completion bash"
    yield "_nsq() {"
    yield '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  local command="${COMP_WORDS[1]}" found="" names=""'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    found="{every} --help --version"'
    yield "  else"
    yield from _choose_words(commands, '[ "$COMP_CWORD" -eq 2 ]')
    yield "  fi"
    yield '  if [ -n "$names" ]; then'
    yield f'    found="$found $(nsq {COMPLETE} "$names" -- "${{COMP_WORDS[@]}}" 2>/dev/null)"'
    yield "  fi"
    yield '  mapfile -t COMPREPLY < <(compgen -W "$found" -- "$cur")'
    yield "}"
    yield "complete -o default -F _nsq nsq"


def make_zsh(commands: list[Words]) -> Iterator[str]:
    """Yield the lines of the script for zsh."""
    yield "#compdef nsq"
    yield "_nsq() {"
    yield '  local cur="${words[CURRENT]}" prev="${words[CURRENT-1]}" command="${words[2]}"'
    yield '  local names="" found=""'
    yield "  local -a choices"
    yield "  if (( CURRENT == 2 )); then"
    yield "    choices=("
    for each in commands:
        yield f"      {shlex.quote(f'{each.command}:{each.help_text}')}"
    yield "    )"
    yield "    _describe command choices"
    yield "    return"
    yield "  fi"
    yield from _choose_words(commands, "(( CURRENT == 3 ))")
    yield '  if [[ -n "$names" ]]; then'
    yield f'    found="$found $(nsq {COMPLETE} "$names" -- "${{words[@]}}" 2>/dev/null)"'
    yield "  fi"
    yield "  choices=(${=found})"
    yield "  (( $#choices )) && compadd -- $choices || _files"
    yield "}"
    # Sourced, it declares itself; found in fpath, it is called.
    yield 'if [ "$funcstack[1]" = "_nsq" ]; then _nsq "$@"; else compdef _nsq nsq; fi'


def _choose_words(commands: list[Words], is_first: str) -> Iterator[str]:
    """Yield the choice of `found` and `names`, by the command and by the word before.

    Args:
        is_first: the test whether the word to complete stands right behind the command.
    """
    yield '    case "$prev" in'
    for flag, kind in _NAMES_OF_FLAGS.items():
        also = "|-a" if flag == "--nsqd" else ""
        yield f"      {flag}{also}) names={kind} ;;"
    yield '      *) case "$command" in'
    for each in commands:
        yield f"        {each.command})"
        yield '          case "$cur" in'
        yield f'            -*) found="{" ".join(each.flags)}" ;;'
        if each.actions:
            then = f"names={each.names}" if each.names else ":"
            actions = " ".join(each.actions)
            yield f'            *) if {is_first}; then found="{actions}"; else {then}; fi ;;'
        elif each.names:
            yield f"            *) names={each.names} ;;"
        yield "          esac ;;"
    yield "      esac ;;"
    yield "    esac"


def make_fish(commands: list[Words]) -> Iterator[str]:
    """Yield the lines of the script for fish."""
    yield "# nsq completion fish"
    yield "complete -c nsq -f"
    names = " ".join(each.command for each in commands)
    ask = f"(nsq {COMPLETE} %s -- (commandline -opc) (commandline -ct) 2>/dev/null)"
    for each in commands:
        is_first = f"not __fish_seen_subcommand_from {names}"
        yield f"complete -c nsq -n '{is_first}' -a {each.command} -d {_quote(each.help_text)}"
    for each in commands:
        seen = f"__fish_seen_subcommand_from {each.command}"
        if each.actions:
            first = f"test (count (commandline -opc)) -eq 2; and {seen}"
            yield f"complete -c nsq -n '{first}' -a '{' '.join(each.actions)}'"
        if each.names:
            later = f"test (count (commandline -opc)) -gt 2; and {seen}" if each.actions else seen
            yield f"complete -c nsq -n '{later}' -a '{ask % each.names}'"
        for flag, text in each.flags.items():
            kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            known = _NAMES_OF_FLAGS.get(flag)
            values = f" -x -a '{ask % known}'" if known else ""
            yield f"complete -c nsq -n '{seen}' {kind} -d {_quote(text)}{values}"


def _quote(text: str) -> str:
    """Return text in quotes of fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
