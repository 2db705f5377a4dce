"""`nsq context`: save the addresses, token and TLS files of a cluster, and select one."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from dataclasses import fields, replace
from typing import Any, Final

from nsqd.cli import arguments, contexts
from nsqd.cli.contexts import Context, Saved
from nsqd.cli.output import CliError, ExitCode, print_json, print_table

EXAMPLES: Final = {
    "context": """examples:
  nsq context add prod --lookupd lookup-1:4161 --lookupd lookup-2:4161 --read-only
  nsq context select prod
  nsq context show --effective"""
}
_SETTINGS: Final = tuple(each.name for each in fields(Context))


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq context`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the contexts")
    listing.add_argument("--json", action="store_true")
    _add_settings(actions.add_parser("add", help="add or replace a context"), is_new=True)
    editing = actions.add_parser(
        "edit", help="change settings of a context; without any, open the file in $EDITOR"
    )
    _add_settings(editing, is_new=False)
    removing = actions.add_parser("rm", help="remove a context")
    removing.add_argument("name")
    selecting = actions.add_parser("select", help="use a context from now on")
    selecting.add_argument("name", nargs="?", help="- for the previous one")
    selecting.add_argument("--none", action="store_true", help="use none")
    showing = actions.add_parser("show", help="show a context")
    showing.add_argument("name", nargs="?")
    showing.add_argument(
        "--effective", action="store_true", help="what a command would use, and why"
    )
    arguments.add_common(showing)


def _add_settings(parser: argparse.ArgumentParser, *, is_new: bool) -> None:
    parser.add_argument("name", nargs=None if is_new else "?")
    for name in ("nsqd", "lookupd"):
        parser.add_argument(f"--{name}", action="append", metavar="ADDRESS")
    for name in ("tls", "tls-insecure", "read-only"):
        # `add --tls` or nothing; `edit --no-tls` takes it back.
        action: Any = "store_true" if is_new else argparse.BooleanOptionalAction
        parser.add_argument(f"--{name}", action=action, default=None)
    for name in ("tls-ca", "tls-cert", "tls-key", "auth-secret-file", "token-file"):
        parser.add_argument(f"--{name}", metavar="FILE", help=None if is_new else "'' removes it")


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq context`.

    Raises:
        CliError: there is no such context, or the file cannot be used.
    """
    saved = contexts.load()
    match options.action:
        case "ls":
            _print_all(saved, is_json=options.json)
        case "add":
            saved.contexts[options.name] = contexts.read_context(_given(options))
            contexts.save(saved)
        case "edit":
            _edit(saved, options)
        case "rm":
            saved.get(options.name)
            saved.remove(options.name)
            contexts.save(saved)
        case "select":
            _select(saved, options)
        case _ if options.effective:
            _print_effective(options)
        case _:
            _print_one(saved, options.name or options.context, is_json=options.json)
    return ExitCode.DONE


def _given(options: argparse.Namespace) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in _SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _edit(saved: Saved, options: argparse.Namespace) -> None:
    changes = _given(options)
    name = options.name or saved.current
    if not changes and options.name is None:
        _open_editor()
        return
    if name is None:
        raise CliError("no context is selected", ExitCode.MISSING)
    context = saved.get(name)
    if not changes:
        _open_editor()
        return
    for key in ("nsqd", "lookupd"):
        if key in changes:
            changes[key] = tuple(filter(None, changes[key]))
    # An empty path removes the setting.
    changes = {key: None if value == "" else value for key, value in changes.items()}
    saved.contexts[name] = replace(context, **changes)
    contexts.save(saved)


def _open_editor() -> None:
    """Open the file in the editor; refuse it afterwards if it is not readable."""
    path = contexts.path_of_file()
    if not os.path.exists(path):
        contexts.save(Saved())
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), path], check=False).returncode
    except OSError as error:
        raise CliError(f"{editor}: {error.strerror}: set EDITOR") from error
    if code:
        raise CliError(f"{editor} ended with {code}")
    contexts.load()


def _select(saved: Saved, options: argparse.Namespace) -> None:
    if options.none == (options.name is not None):
        raise CliError("nsq context select needs a name, - or --none", ExitCode.USAGE)
    name = options.name
    if name == "-":
        name = saved.previous
        if name is None:
            raise CliError("no context was selected before", ExitCode.MISSING)
    if name is not None:
        saved.get(name)
    saved.select(name)
    contexts.save(saved)


def _print_one(saved: Saved, given: str | None, *, is_json: bool) -> None:
    name = given or saved.current
    if name is None:
        raise CliError("no context is selected", ExitCode.MISSING)
    context = saved.get(name)
    values = {key: getattr(context, key) for key in _SETTINGS}
    if is_json:
        print_json({"name": name, **values})
    else:
        rows = [(key, _show(value)) for key, value in values.items() if value]
        print_table(("setting", "value"), rows)


def _print_effective(options: argparse.Namespace) -> None:
    # Imported here: the other actions need no addresses of the client.
    from nsqd.cli.target import find_settings

    if options.name:
        options.context = options.name
    found = find_settings(options, os.environ)
    if options.json:
        for each in found:
            print_json({"setting": each.name, "value": each.value, "source": each.source})
        return
    print_table(
        ("setting", "value", "source"),
        [(each.name, _show(each.value), each.source) for each in found],
    )


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, tuple | list) else str(value)


def _print_all(saved: Saved, *, is_json: bool) -> None:
    if is_json:
        for name, context in saved.contexts.items():
            addresses = {"nsqd": context.nsqd, "lookupd": context.lookupd}
            is_selected = name == saved.current
            row = {"name": name, "is_selected": is_selected, **addresses}
            print_json({**row, "read_only": context.read_only})
        return
    rows = [
        (
            "*" if name == saved.current else "",
            name,
            ", ".join(context.lookupd + context.nsqd),
            "read-only" if context.read_only else "",
        )
        for name, context in saved.contexts.items()
    ]
    print_table(("", "name", "addresses", ""), rows)
