"""The command of a daemon: what it reads, at the start and again, and what a reload takes over."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsqd.config import program
from nsqd.config.flags import ConfigError, OptionsError, flag
from nsqd.config.kinds import INT
from nsqd.config.logs import LogFormat, LogLevel
from nsqd.config.program import Program, take_over

# ruff: noqa: RUF009 - flag() makes dataclass fields; ruff takes them for values.


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    version: bool = program.version_flag()
    config: str = program.config_flag()
    log_level: LogLevel = program.log_level_flag()
    log_format: LogFormat = program.log_format_flag()
    log_prefix: str = program.log_prefix_flag("tool")
    verbose: bool = program.verbose_flag()
    size: int = flag("size", 1, INT, "of it")
    depth: int = flag("depth", 1, INT, "of it")


def check(options: Options) -> None:
    if options.size > 9:
        raise OptionsError("--size is too large")


TOOL = Program("tool", Options, check)


@pytest.fixture(autouse=True)
def _restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def read_again(*argv: str) -> Callable[[], Options]:
    """Return the function that the daemon is given for reloads."""
    given: list[Callable[[], Options]] = []

    def run(_options: Options, read_options: Callable[[], Options]) -> int:
        given.append(read_options)
        return 0

    assert TOOL.main(argv, run) == 0
    return given[0]


def test_a_key_of_the_file_without_effect_is_in_the_log_of_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tool.cfg"
    path.write_text("sice = 2\n")

    read_again(f"--config={path}")

    assert 'no option has the key "sice", ignored; did you mean size?' in capsys.readouterr().err


def test_values_that_are_out_of_bounds_are_left_to_the_daemon() -> None:
    """nsqd checks them when it has locked its data path, as the Go nsqd does."""
    seen: list[int] = []

    def run(options: Options, _read: Callable[[], Options]) -> int:
        seen.append(options.size)
        return 7

    assert TOOL.main(["--size=10"], run) == 7
    assert seen == [10]


def test_the_file_is_read_again_with_its_flags_warnings_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tool.cfg"
    path.write_text("size = 2\n")
    read = read_again(f"--config={path}", "--depth=5")

    path.write_text("size = 3\ndepth = 6\nwidth = 7\n")
    options = read()

    assert (options.size, options.depth) == (3, 5)
    assert 'no option has the key "width"' in capsys.readouterr().err
    path.write_text("size = 10\n")
    with pytest.raises(OptionsError, match="--size is too large"):
        read()
    path.unlink()
    with pytest.raises(ConfigError, match="failed to load config file"):
        read()


def test_a_reload_sets_the_log_level_and_names_what_takes_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = Options(config="x", size=1, depth=1)
    after = Options(config="x", size=2, depth=2, log_level=LogLevel.WARN)

    with caplog.at_level(logging.INFO):
        take_over(before, after, others={"depth"})

        assert logging.getLogger().level == logging.WARNING
    assert [record.getMessage() for record in caplog.records] == [
        "RELOAD: --size has changed, which takes a restart"
    ]


def test_without_a_config_file_the_log_level_stays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        take_over(Options(), Options(log_level=LogLevel.ERROR))

        assert logging.getLogger().level == logging.INFO
    assert caplog.records == []
