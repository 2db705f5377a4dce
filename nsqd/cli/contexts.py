"""Contexts: saved settings of clusters, in a TOML file that holds no secrets, only their paths.

`nsqd.cli.setup.context` is the command that changes them.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field, fields
from typing import Any, Final

from nsqd.cli.output import CliError, ExitCode, did_you_mean

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


@dataclass(slots=True)
class Saved:
    """All contexts, by name; which one is selected, and which was before."""

    contexts: dict[str, Context] = field(default_factory=dict)
    current: str | None = None
    previous: str | None = None

    def get(self, name: str) -> Context:
        """Return a context.

        Raises:
            CliError: there is none of this name.
        """
        if name not in self.contexts:
            hint = did_you_mean(name, self.contexts)
            raise CliError(f"no context {name!r}{hint}", ExitCode.MISSING)
        return self.contexts[name]

    def select(self, name: str | None) -> None:
        """Select a context, or none."""
        if name != self.current:
            self.previous, self.current = self.current, name

    def remove(self, name: str) -> None:
        """Forget a context."""
        del self.contexts[name]
        self.current = None if self.current == name else self.current
        self.previous = None if self.previous == name else self.previous


def path_of_file() -> str:
    """Return where the contexts are."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "nsq", "config.toml")


def load() -> Saved:
    """Read the contexts; without a file there are none.

    Raises:
        CliError: the file cannot be read, or is not safe.
    """
    path = path_of_file()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        return Saved()
    except (OSError, UnicodeError) as error:
        raise CliError(f"{path}: {error}") from error
    import tomllib  # Here and below: most commands find no file, and change none.

    try:
        content = tomllib.loads(text)
        contexts = {
            name: read_context(entry) for name, entry in content.get("contexts", {}).items()
        }
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise CliError(f"{path}: {error}") from error
    names_secrets = any(
        getattr(context, name) for context in contexts.values() for name in _SECRET_FILES
    )
    if names_secrets and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CliError(
            f"{path} names secrets, and others may read it: chmod 600 it", ExitCode.FORBIDDEN
        )
    return Saved(contexts, content.get("current"), content.get("previous"))


def read_context(entry: dict[str, Any]) -> Context:
    """Return a context of its settings.

    Raises:
        TypeError: a setting is unknown, or of another kind.
    """
    known = {each.name: each.default for each in fields(Context)}
    unknown = entry.keys() - known
    if unknown:
        raise TypeError(f"unknown settings {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    for name, value in entry.items():
        default = known[name]
        if isinstance(default, bool) and not isinstance(value, bool):
            raise TypeError(f"{name} is not true or false")
        if default is None and not isinstance(value, str):
            raise TypeError(f"{name} is not a path")
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if isinstance(default, tuple) and not is_list:
            raise TypeError(f"{name} is not a list of addresses")
        values[name] = tuple(value) if isinstance(value, list) else value
    return Context(**values)


def save(saved: Saved) -> None:
    """Write the file anew, readable by its owner only."""
    chosen = {"current": saved.current, "previous": saved.previous}
    lines = [f"{key} = {json.dumps(name)}" for key, name in chosen.items() if name is not None]
    for name, context in saved.contexts.items():
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        for each in fields(Context):
            value = getattr(context, each.name)
            if value:
                shown = list(value) if isinstance(value, tuple) else value
                lines.append(f"{each.name} = {json.dumps(shown)}")
    path = path_of_file()
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True, mode=0o700)
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=directory)  # its mode is 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(temporary, path)
