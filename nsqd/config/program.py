"""Program: the command line of a daemon, from argv to the options that it runs with.

Exit codes: 0 for help and --version, 1 for a config file that cannot be used, 2 for a wrong flag;
else the exit code is that of the daemon.
"""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from nsqd.config import flags, logs
from nsqd.config.flags import CommandLineExit, ConfigError, flag, version_text
from nsqd.config.kinds import BOOL, TEXT
from nsqd.config.logs import LOG_FORMAT, LOG_LEVEL, LogFormat, LogLevel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class DaemonOptions(DataclassInstance, Protocol):
        """The options that every daemon has."""

        @property
        def version(self) -> bool: ...
        @property
        def config(self) -> str: ...
        @property
        def log_level(self) -> LogLevel: ...
        @property
        def log_format(self) -> LogFormat: ...
        @property
        def log_prefix(self) -> str: ...


OptionsT = TypeVar("OptionsT", bound="DaemonOptions")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Program(Generic[OptionsT]):
    """One of the daemons, as a command."""

    name: str
    options: type[OptionsT]
    # Raises OptionsError.
    check: Callable[[OptionsT], None]

    def main(
        self,
        argv: Sequence[str] | None,
        run: Callable[[OptionsT, Callable[[], OptionsT]], int],
    ) -> int:
        """Run the program and return its exit code.

        Args:
            argv: without the program's name; None for that of the process.
            run: runs the daemon with these options, once logs are written as they say. The second
                argument reads command line and config file again, warns and checks, for `reload`.
        """
        given = sys.argv[1:] if argv is None else argv
        warnings: list[str] = []
        try:
            options = self.read(given, warnings)
        except CommandLineExit as early:
            sys.stderr.write(f"{early.text}\n")
            return early.status
        except ConfigError as error:
            logs.fatal_line(self.name, str(error), level=error.level)
            return 1
        if options.version:
            sys.stdout.write(f"{version_text(self.name)}\n")
            return 0
        logs.configure(options.log_prefix, options.log_level, options.log_format)
        _log(warnings)
        return run(options, lambda: self._read_again(given))

    def read(self, argv: Sequence[str], warnings: list[str] | None = None) -> OptionsT:
        """Read the options of a command line, and of the config file that it names.

        Args:
            warnings: gets a line for each key of the file that has no effect.

        Raises:
            CommandLineExit: help was asked for, or argv is wrong.
            ConfigError: the config file is missing or wrong.
        """
        return flags.load(self.options, argv, program=self.name, warnings=warnings)

    def _read_again(self, argv: Sequence[str]) -> OptionsT:
        warnings: list[str] = []
        options = self.read(argv, warnings)
        _log(warnings)
        self.check(options)
        return options


def _log(warnings: list[str]) -> None:
    for text in warnings:
        logger.warning("%s", text)


def take_over(before: OptionsT, after: OptionsT, *, others: Collection[str] = ()) -> None:
    """Set the log level that the config file has now; warn of other options that have changed.

    Args:
        others: fields of options that have been taken over already.
    """
    if after.config:
        logs.set_level(after.log_level)
        logger.info("RELOAD: log level=%s", after.log_level.name.lower())
    for name, flag_name in flags.find_changes(before, after).items():
        if name != "log_level" and name not in others:
            logger.warning("RELOAD: --%s has changed, which takes a restart", flag_name)


def version_flag() -> bool:
    """Declare --version, the first option of a daemon."""
    help_text = "print the version and exit"
    return flag("version", False, BOOL, help_text, in_config=False, heading="General")


def config_flag() -> str:
    """Declare --config."""
    return flag("config", "", TEXT, "TOML file with more options", in_config=False, noun="file")


def log_level_flag() -> LogLevel:
    """Declare --log-level."""
    return flag("log-level", LogLevel.INFO, LOG_LEVEL, "log this level and what is worse")


def log_format_flag() -> LogFormat:
    """Declare --log-format, which NSQ does not have."""
    help_text = "text as NSQ writes it, or a JSON object per line"
    return flag("log-format", LogFormat.TEXT, LOG_FORMAT, help_text)


def log_prefix_flag(program: str) -> str:
    """Declare --log-prefix; the name of the program stands in it."""
    return flag("log-prefix", f"[{program}] ", TEXT, "start of every log line")


def verbose_flag() -> bool:
    """Declare --verbose, which NSQ's daemons take for old scripts."""
    return flag("verbose", False, BOOL, "no effect, use --log-level", in_config=False)
