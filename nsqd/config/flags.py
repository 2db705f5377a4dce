"""Command line, config file and help of a daemon, declared on one frozen dataclass.

Each field made with `flag()` is one option: its flag, its TOML key, its kind, default, bounds and
help. `load()` reads argv in the syntax of Go's flag package, because nsqd's scripts and unit files
are written in it, then the TOML file named by --config. A flag beats the file, the file beats the
default. Nothing here prints or exits: `CommandLineExit` and the errors are raised to `main()`.
"""

import dataclasses
import difflib
import json
import platform
import textwrap
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from nsqd import PROTOCOL_VERSION, __version__
from nsqd.config.kinds import BOOL, TEXT, Kind, toml_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="DataclassInstance")

_HELP_NAMES = frozenset({"h", "help"})
_USAGE_COLUMNS = 80
# Of keys that no option has, of which the log tells.
_MAX_WARNINGS = 1000
_MAX_SHOWN_KEY = 64
_SYNTAX = (
    "Flags are written --flag=value, --flag value or -flag=value, booleans --flag or --flag=false."
    " Durations look like 250ms, 1m30s or 1.5h."
)
_FILE_SYNTAX = (
    " The TOML file of --config holds the same options, with underscores for dashes:"
    ' msg_timeout = "90s". Flags win over the file.'
)


class CommandLineExit(Exception):  # noqa: N818 - asking for help is not an error
    """The command line ends the program: help was asked for (0), or a flag is wrong (2).

    `text` goes to stderr as it is; `status` is the exit code.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ConfigError(Exception):
    """The config file cannot be read, or holds a value its option does not take; exit code 1.

    `level` is the word before the text in the log line; nsqd writes ERROR for wrong types.
    """

    def __init__(self, text: str, *, level: str = "FATAL") -> None:
        super().__init__(text)
        self.level = level


class OptionsError(Exception):
    """An option is outside its bounds, or contradicts another one; exit code 1."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One option, as declared by `flag()`."""

    name: str
    kind: Kind[Any]
    # The word for the value in the help.
    noun: str
    help_text: str
    default: Callable[[], Any]
    # Shown by help and README in place of a default that differs between machines.
    default_text: str | None
    # The key in the config file; None for an option that only the command line has.
    toml_key: str | None
    minimum: float | None
    maximum: float | None
    # Starts a new group of options in help and README.
    heading: str | None
    # Which values are valid beside the bounds, and the words for them in an error.
    accepts: tuple[Callable[[Any], bool], str] | None
    # The help text of the gauge that shows the option in /metrics, if one does.
    gauge_help: str | None

    def check(self, value: Any) -> None:
        """Check a value against the bounds.

        Raises:
            ValueError: with the reason, which may follow the name of the option.
        """
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.kind.show(self.minimum)}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"must be at most {self.kind.show(self.maximum)}")
        if self.accepts is not None and not self.accepts[0](value):
            raise ValueError(f"must be {self.accepts[1]}")

    def shown_default(self) -> str:
        """Return the default as help and README print it; empty for "off"."""
        if self.default_text is not None:
            return self.default_text
        shown: str = self.kind.show(self.default())
        return shown


def flag(
    name: str,
    default: T | Callable[[], T],
    kind: Kind[T],
    help_text: str,
    *,
    noun: str | None = None,
    default_text: str | None = None,
    toml_key: str | None = None,
    in_config: bool = True,
    minimum: float | None = None,
    maximum: float | None = None,
    heading: str | None = None,
    accepts: tuple[Callable[[T], bool], str] | None = None,
    gauge_help: str | None = None,
) -> T:
    """Declare a dataclass field as an option.

    Args:
        default: the value, or a function that computes it.
        noun: the word for the value in the help, if not that of its kind.
        default_text: shown by the help for a computed default.
        toml_key: its key in the config file, if not the name with underscores.
        in_config: whether the config file may set it.
        minimum, maximum: inclusive bounds, for `check_bounds()`.
        heading: title of the group of options that begins here.
        accepts: says whether a value is valid, and how errors call the valid ones.
        gauge_help: the help text of its gauge, for a limit of topics.
    """
    factory: Callable[[], T] = default if callable(default) else lambda: default
    declared = Flag(
        name=name,
        kind=kind,
        noun=noun or kind.noun,
        help_text=help_text,
        default=factory,
        default_text=default_text,
        toml_key=(toml_key or name.replace("-", "_")) if in_config else None,
        minimum=minimum,
        maximum=maximum,
        heading=heading,
        accepts=accepts,
        gauge_help=gauge_help,
    )
    return dataclasses.field(default_factory=factory, metadata={"flag": declared})


def group(options: type[OptionsT]) -> OptionsT:
    """Declare a dataclass field as a group of options, which are those of another dataclass."""
    return dataclasses.field(default_factory=options, metadata={"group": options})


def declared_flags(options: "type[DataclassInstance] | DataclassInstance") -> dict[str, Flag]:
    """Return the options of a dataclass and its groups by field name, in order of declaration."""
    found: dict[str, Flag] = {}
    for field in dataclasses.fields(options):
        if "group" in field.metadata:
            found |= declared_flags(field.metadata["group"])
        elif "flag" in field.metadata:
            found[field.name] = field.metadata["flag"]
    return found


def _read_values(options: "DataclassInstance") -> dict[str, object]:
    """Return the values of `declared_flags` by field name."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        values |= _read_values(value) if "group" in field.metadata else {field.name: value}
    return values


def _make(options: type[OptionsT], values: dict[str, object]) -> OptionsT:
    """Make the dataclass of values by field name, those of its groups among them."""
    given: dict[str, object] = {}
    for field in dataclasses.fields(options):
        if "group" in field.metadata:
            given[field.name] = _make(field.metadata["group"], values)
        elif field.name in values:
            given[field.name] = values[field.name]
    return options(**given)


def load(
    options: type[OptionsT],
    argv: Sequence[str],
    *,
    program: str,
    warnings: list[str] | None = None,
    rest: list[str] | None = None,
) -> OptionsT:
    """Read argv, then the file that --config names, into the dataclass.

    With --version the config file is left alone, as nsqd does.

    Args:
        warnings: gets a line for each key of the file that no option has; nsqd ignores those.
        rest: gets the arguments behind the flags; nsqd ignores those too.

    Raises:
        CommandLineExit: help was asked for, or argv is wrong.
        ConfigError: the config file is missing or wrong.
    """
    remaining = deque(argv)
    given = _parse_argv(options, remaining, program)
    if rest is not None:
        if remaining and remaining[0] == "--":
            remaining.popleft()
        rest += remaining
    path = given.get("config")
    if path and not given.get("version"):
        assert isinstance(path, str)
        document = _read_document(path)
        if warnings is not None:
            warnings += _find_unknown_keys(options, document, path)
        given = _convert_document(options, document) | given
    return _make(options, given)


def check_bounds(options: "DataclassInstance") -> None:
    """Check every option against the bounds of its declaration.

    Raises:
        OptionsError: naming the flag and the bound.
    """
    values = _read_values(options)
    for field_name, declared in declared_flags(options).items():
        try:
            declared.check(values[field_name])
        except ValueError as error:
            raise OptionsError(f"--{declared.name} {error}") from error


def find_changes(before: OptionsT, after: OptionsT) -> dict[str, str]:
    """Return the options that differ, their flags by field name."""
    old, new = _read_values(before), _read_values(after)
    return {
        name: declared.name
        for name, declared in declared_flags(before).items()
        if old[name] != new[name]
    }


def config_value(options: "DataclassInstance", toml_key: str) -> object:
    """Return the option with that TOML key, as JSON holds it: durations in ns, enums as integers.

    Raises:
        KeyError: no option has that key.
    """
    for field_name, declared in declared_flags(options).items():
        if declared.toml_key == toml_key:
            value: object = declared.kind.to_json(_read_values(options)[field_name])
            return value
    raise KeyError(toml_key)


def version_text(program: str) -> str:
    """Return the line of --version. Its vX.Y.Z is NSQ's version, which scripts take out of it."""
    python = platform.python_version()
    return f"{program} v{PROTOCOL_VERSION} (built w/python{python}, nsqd-python {__version__})"


def _parse_argv(
    options: "type[DataclassInstance]", remaining: deque[str], program: str
) -> dict[str, object]:
    """Return the given options by field name, and take them off."""
    by_name = {item.name: (field, item) for field, item in declared_flags(options).items()}
    given: dict[str, object] = {}

    def fail(text: str) -> NoReturn:
        raise CommandLineExit(2, f"{text}\n{usage(options, program)}")

    # A lone "-" is an argument, not a flag. Arguments end the flags and are ignored, as in nsqd.
    while remaining and remaining[0].startswith("-") and remaining[0] not in {"-", "--"}:
        argument = remaining.popleft()
        name, equals, text = argument.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            fail(f"bad flag syntax: {argument}")
        if name not in by_name:
            if name in _HELP_NAMES:
                raise CommandLineExit(0, usage(options, program))
            fail(f"flag provided but not defined: -{name}")
        field, declared = by_name[name]
        if not equals:
            if not declared.kind.is_boolean and not remaining:
                fail(f"flag needs an argument: -{name}")
            text = "true" if declared.kind.is_boolean else remaining.popleft()
        try:
            given[field] = _parsed(declared, text, given.get(field))
        except ValueError as error:
            fail(str(error))
    return given


def _parsed(declared: Flag, text: str, earlier: object) -> object:
    """Return the flag's value, joined to an earlier one if the flag is a list.

    Raises:
        ValueError: with the whole message.
    """
    try:
        value: object = declared.kind.parse(text)
    except ValueError as error:
        noun, flag_word = ("boolean value", "") if declared.kind.is_boolean else ("value", "flag ")
        raise ValueError(
            f"invalid {noun} {_quoted(text)} for {flag_word}-{declared.name}: {error}"
        ) from error
    if declared.kind.join is not None and earlier is not None:
        value = declared.kind.join(earlier, value)
    return value


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _read_document(path: str) -> dict[str, object]:
    """Return the contents of the TOML file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        cause = f"open {path}: {(error.strerror or str(error)).lower()}"
        raise ConfigError(f"failed to load config file {path} - {cause}") from error
    except ValueError as error:  # TOMLDecodeError, or bytes that are not UTF-8.
        raise ConfigError(f"failed to load config file {path} - {error}") from error
    except RecursionError as error:
        raise ConfigError(f"failed to load config file {path} - nested too deeply") from error


def _convert_document(
    options: "type[DataclassInstance]", document: dict[str, object]
) -> dict[str, object]:
    """Return the options that the document sets, by field name.

    Raises:
        ConfigError: a value does not fit.
    """
    return {
        field: _convert(declared, document[declared.toml_key])
        for field, declared in declared_flags(options).items()
        if declared.toml_key is not None and declared.toml_key in document
    }


def _find_unknown_keys(
    options: "type[DataclassInstance]", document: dict[str, object], path: str
) -> list[str]:
    """Return a warning for each key that has no effect, with the one that it may stand for."""
    keys = [item.toml_key for item in declared_flags(options).values() if item.toml_key is not None]
    found = []
    for key in list(document)[:_MAX_WARNINGS]:
        if key not in keys:
            close = difflib.get_close_matches(key[:_MAX_SHOWN_KEY], keys, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            shown = _quoted(key[:_MAX_SHOWN_KEY])
            found.append(f"config file {path}: no option has the key {shown}, ignored{hint}")
    return found


def _convert(declared: Flag, value: object) -> object:
    try:
        converted: object = declared.kind.from_toml(value)
    except ValueError as error:
        shown = toml_text(value)
        if declared.kind.is_special:
            raise ConfigError(f"failed parsing {declared.toml_key} {shown}") from error
        raise ConfigError(
            f"Resolve failed to coerce value {shown} ({declared.shown_default()})"
            f" for field {declared.toml_key} - {error}",
            level="ERROR",
        ) from error
    return converted


def usage(options: "type[DataclassInstance]", program: str) -> str:
    """Return the help: every flag under its group's heading, with type, default and meaning."""
    declared_by_name = declared_flags(options)
    syntax = _SYNTAX + _FILE_SYNTAX if "config" in declared_by_name else _SYNTAX
    lines = [
        f"Usage: {program} [--flag=value ...]",
        "",
        *textwrap.wrap(syntax, _USAGE_COLUMNS, break_on_hyphens=False),
    ]
    for declared in declared_by_name.values():
        if declared.heading is not None:
            lines += ["", f"{declared.heading}:"]
        noun = "" if declared.kind is BOOL else f" <{declared.noun}>"
        lines.append(f"  --{declared.name}{noun}{_default_note(declared)}")
        lines += textwrap.wrap(
            _meaning(declared),
            _USAGE_COLUMNS,
            initial_indent=" " * 8,
            subsequent_indent=" " * 8,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _default_note(declared: Flag) -> str:
    if declared.default_text is not None:
        return f"  (default: {declared.default_text})"
    default = declared.default()
    if default is False or default in ("", ()):
        return ""
    shown = declared.kind.show(default)
    return f"  (default: {_quoted(shown) if declared.kind is TEXT else shown})"


def _meaning(declared: Flag) -> str:
    """Return the help text, with the key in the config file where the flag does not tell it."""
    if declared.toml_key in {None, declared.name.replace("-", "_")}:
        return declared.help_text
    return f"{declared.help_text}; `{declared.toml_key}` in the config file"


def markdown_table(options: "type[DataclassInstance]") -> str:
    """Return the options as Markdown: a heading and a table per group, for the README."""
    lines: list[str] = []
    for declared in declared_flags(options).values():
        if declared.heading is not None:
            lines += ["", f"**{declared.heading}**", ""]
            lines += ["| flag | default | meaning |", "| --- | --- | --- |"]
        shown = declared.shown_default()
        if shown and declared.default_text is None:
            shown = f"`{shown}`"
        lines.append(f"| `--{declared.name}` | {shown} | {_meaning(declared)} |")
    return "\n".join(lines).strip("\n") + "\n"
