"""Contexts: saved settings of clusters, in a TOML file that holds no secrets, only their paths.

`nsq context` lists, adds, removes, selects and shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import tempfile
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from nsqd.cli.output import CliError, ExitCode, print_json, print_table

EXAMPLES: Final = {
    "context": """examples:
  nsq context add prod --lookupd lookup-1:4161 --lookupd lookup-2:4161 --read-only
  nsq context select prod
  nsq context ls"""
}
_SECRET_FILES: Final = ("auth_secret_file", "token_file", "tls_key")


@dataclass(frozen=True, slots=True)
class Context:
    """The settings of one cluster."""

    nsqd: tuple[str, ...] = ()
    lookupd: tuple[str, ...] = ()
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_insecure: bool = False
    auth_secret_file: str | None = None
    token_file: str | None = None
    read_only: bool = False


def path_of_file() -> Path:
    """Return where the contexts are."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "nsq" / "config.toml"


def load() -> tuple[str | None, dict[str, Context]]:
    """Return the name of the selected context, and all contexts.

    Raises:
        CliError: the file cannot be read, or is not safe.
    """
    path = path_of_file()
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None, {}
    except (OSError, UnicodeError) as error:
        raise CliError(f"{path}: {error}") from error
    try:
        content = tomllib.loads(text)
        contexts = {name: _read(entry) for name, entry in content.get("contexts", {}).items()}
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise CliError(f"{path}: {error}") from error
    names_secrets = any(
        getattr(context, name) for context in contexts.values() for name in _SECRET_FILES
    )
    if names_secrets and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CliError(
            f"{path} names secrets, and others may read it: chmod 600 it", ExitCode.FORBIDDEN
        )
    return content.get("current"), contexts


def _read(entry: dict[str, Any]) -> Context:
    known = {field.name for field in fields(Context)}
    unknown = entry.keys() - known
    if unknown:
        raise TypeError(f"unknown settings {', '.join(sorted(unknown))}")
    names = ("nsqd", "lookupd")
    lists: dict[str, Any] = {name: tuple(entry[name]) for name in names if name in entry}
    values: dict[str, Any] = {**entry, **lists}
    return Context(**values)


def save(current: str | None, contexts: dict[str, Context]) -> None:
    """Write the file anew, readable by its owner only."""
    lines = [] if current is None else [f"current = {json.dumps(current)}"]
    for name, context in contexts.items():
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        for field in fields(Context):
            value = getattr(context, field.name)
            if value:
                shown = list(value) if isinstance(value, tuple) else value
                lines.append(f"{field.name} = {json.dumps(shown)}")
    path = path_of_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # its mode is 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    Path(temporary).replace(path)


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq context`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the contexts")
    listing.add_argument("--json", action="store_true")
    adding = actions.add_parser("add", help="add or replace a context")
    adding.add_argument("name")
    adding.add_argument("--nsqd", action="append", default=[])
    adding.add_argument("--lookupd", action="append", default=[])
    for name in ("tls", "tls-insecure", "read-only"):
        adding.add_argument(f"--{name}", action="store_true")
    for name in ("tls-ca", "tls-cert", "tls-key", "auth-secret-file", "token-file"):
        adding.add_argument(f"--{name}", metavar="FILE")
    for action, text in (("rm", "remove a context"), ("select", "use a context; - for none")):
        actions.add_parser(action, help=text).add_argument("name")
    showing = actions.add_parser("show", help="show a context")
    showing.add_argument("name", nargs="?")
    showing.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq context`.

    Raises:
        CliError: there is no such context, or the file cannot be used.
    """
    current, contexts = load()
    match options.action:
        case "ls":
            _print_all(current, contexts, is_json=options.json)
        case "add":
            names = [field.name for field in fields(Context)]
            contexts[options.name] = _read({name: getattr(options, name) for name in names})
            save(current, contexts)
        case "rm":
            _get(contexts, options.name)
            del contexts[options.name]
            save(None if current == options.name else current, contexts)
        case "select":
            if options.name != "-":
                _get(contexts, options.name)
            save(None if options.name == "-" else options.name, contexts)
        case _:
            name = options.name or current
            if name is None:
                raise CliError("no context is selected", ExitCode.MISSING)
            context = _get(contexts, name)
            values = {field.name: getattr(context, field.name) for field in fields(Context)}
            if options.json:
                print_json({"name": name, **values})
            else:
                rows = [(key, _show(value)) for key, value in values.items() if value]
                print_table(("setting", "value"), rows)
    return ExitCode.DONE


def _get(contexts: dict[str, Context], name: str) -> Context:
    if name not in contexts:
        raise CliError(f"no context {name!r}", ExitCode.MISSING)
    return contexts[name]


def _show(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _print_all(current: str | None, contexts: dict[str, Context], *, is_json: bool) -> None:
    if is_json:
        for name, context in contexts.items():
            addresses = {"nsqd": context.nsqd, "lookupd": context.lookupd}
            print_json({"name": name, "is_selected": name == current, **addresses})
        return
    rows = [
        (
            "*" if name == current else "",
            name,
            ", ".join(context.lookupd or context.nsqd),
            "read-only" if context.read_only else "",
        )
        for name, context in contexts.items()
    ]
    print_table(("", "name", "addresses", ""), rows)
