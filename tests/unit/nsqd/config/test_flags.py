"""Go's flag syntax, TOML conversions, durations and help, on a small dataclass of options."""

import enum
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.config import flags, kinds
from nsqd.config.flags import CommandLineExit, ConfigError, OptionsError, flag, group
from nsqd.config.kinds import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    TEXT,
    TEXTS,
    Kind,
    format_duration,
    parse_duration,
)


class Colour(enum.IntEnum):
    RED = 7
    BLUE = 8


def parse_colour(text: str) -> Colour:
    try:
        return Colour[text.upper()]
    except KeyError:
        raise ValueError("no such colour") from None


COLOUR: Kind[Colour] = kinds.special(
    "red|blue", parse_colour, lambda colour: colour.name.lower(), to_json=int
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    version: bool = flag("version", False, BOOL, "print it", in_config=False, heading="General")
    config: str = flag("config", "", TEXT, "a file", in_config=False, noun="file")
    name: str = flag("name", "x ", TEXT, "who", toml_key="full_name")
    node: int = flag("node", lambda: 5, INT, "which", default_text="computed")
    max_size: int = flag("max-size", 10, INT, "how many", minimum=1, maximum=99, heading="Sizes")
    wait_s: float = flag("wait", 60.0, DURATION, "how long", minimum=0.001)
    fast: bool = flag("fast", True, BOOL, "be fast")
    colour: Colour = flag("colour", Colour.RED, COLOUR, "paint")  # noqa: RUF009
    peers: tuple[str, ...] = flag("peer", (), TEXTS, "somebody", toml_key="peers")
    shares: tuple[float, ...] = flag("share", (), FLOATS, "parts", toml_key="shares")


def load(*argv: str) -> Options:
    return flags.load(Options, argv, program="tool")


def load_config(tmp_path: Path, toml: str, *argv: str) -> Options:
    path = tmp_path / "tool.cfg"
    path.write_text(toml)
    return load(f"--config={path}", *argv)


def failure(*argv: str) -> str:
    """The first line of the complaint about argv, which must exit with 2 and show the usage."""
    with pytest.raises(CommandLineExit) as caught:
        load(*argv)
    assert caught.value.status == 2
    message, usage = caught.value.text.split("\n", 1)
    assert usage == flags.usage(Options, "tool")
    return message


def config_failure(tmp_path: Path, toml: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, toml)
    return caught.value


class TestCommandLine:
    def test_nothing_given_means_defaults(self) -> None:
        assert load() == Options()
        assert Options().node == 5

    @pytest.mark.parametrize(
        "argv",
        [
            ["--max-size=12"],
            ["-max-size=12"],
            ["--max-size", "12"],
            ["-max-size", "12"],
            ["--max-size=1", "-max-size", "12"],
        ],
    )
    def test_all_spellings_of_a_flag(self, argv: list[str]) -> None:  # O-1
        assert load(*argv).max_size == 12

    def test_value_may_hold_equals_signs_dashes_and_spaces(self) -> None:
        assert load("--name=a=b -c").name == "a=b -c"
        assert load("--name", "--fast").name == "--fast"
        assert load("--name=").name == ""

    @pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
    def test_true(self, text: str) -> None:
        assert load("--fast=false", f"--fast={text}").fast is True

    @pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
    def test_false(self, text: str) -> None:
        assert load(f"--fast={text}").fast is False

    def test_bare_boolean_is_true(self) -> None:
        assert load("--fast=false", "-fast").fast is True

    def test_boolean_leaves_the_next_argument_alone(self) -> None:
        options = load("--fast", "false", "--max-size=12")

        assert options.fast is True
        assert options.max_size == 10  # "false" is an argument and ended the flags

    @pytest.mark.parametrize("end", ["stop", "-", "--", ""])
    def test_flags_end_at_the_first_argument(self, end: str) -> None:
        assert load("--max-size=12", end, "--max-size=13", "--nope").max_size == 12

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("0x10", 16),
            ("0X_fF", 255),
            ("0b101", 5),
            ("0o17", 15),
            ("017", 15),
            ("0_17", 15),
            ("0", 0),
            ("00", 0),
            ("1_000", 1000),
            ("-12", -12),
            ("+12", 12),
            ("-0x10", -16),
            ("9223372036854775807", 2**63 - 1),
            ("-9223372036854775808", -(2**63)),
        ],
    )
    def test_integers(self, text: str, value: int) -> None:
        assert load(f"--max-size={text}").max_size == value

    @pytest.mark.parametrize(
        "text",
        ["abc", "", "1.5", " 1", "1 ", "1__0", "_1", "1_", "0x", "08", "0b2", "1e3", "--1", "٣"],
    )
    def test_bad_integers(self, text: str) -> None:
        expected = f'invalid value "{text}" for flag -max-size: parse error'
        assert failure(f"--max-size={text}") == expected

    @pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809"])
    def test_integers_beyond_64_bits(self, text: str) -> None:
        expected = f'invalid value "{text}" for flag -max-size: value out of range'
        assert failure(f"--max-size={text}") == expected

    def test_list_flag_repeats_and_keeps_commas(self) -> None:  # O-4
        assert load("--peer=a:1,b:2", "-peer", "c:3").peers == ("a:1,b:2", "c:3")

    def test_float_list_splits_repeats_and_sorts_descending(self) -> None:  # O-4
        assert load("--share=0.5,1.0", "--share=0.99").shares == (1.0, 0.99, 0.5)

    def test_special_value(self) -> None:
        assert load("--colour=Blue").colour is Colour.BLUE

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["--nope"], "flag provided but not defined: -nope"),
            (["-nope=1"], "flag provided but not defined: -nope"),
            (["--max_size=1"], "flag provided but not defined: -max_size"),
            (["--max-size"], "flag needs an argument: -max-size"),
            (["---max-size=1"], "bad flag syntax: ---max-size=1"),
            (["--=1"], "bad flag syntax: --=1"),
            (["-=1"], "bad flag syntax: -=1"),
            (["--version=foo"], 'invalid boolean value "foo" for -version: parse error'),
            (["--version="], 'invalid boolean value "" for -version: parse error'),
            (["--wait=60"], 'invalid value "60" for flag -wait: parse error'),
            (["--wait=soon"], 'invalid value "soon" for flag -wait: parse error'),
            (["--colour=pink"], 'invalid value "pink" for flag -colour: no such colour'),
            (["--share=0.5,x"], 'invalid value "0.5,x" for flag -share: parse error'),
            (["--share=1_0"], 'invalid value "1_0" for flag -share: parse error'),
            (["--max-size=\"'"], 'invalid value "\\"\'" for flag -max-size: parse error'),
        ],
    )
    def test_messages_of_bad_flags(self, argv: list[str], message: str) -> None:  # O-2, O-3
        assert failure(*argv) == message

    @pytest.mark.parametrize("argument", ["-h", "--h", "-help", "--help", "--help=yes"])
    def test_help_exits_0_with_the_usage(self, argument: str) -> None:  # O-2
        with pytest.raises(CommandLineExit) as caught:
            load("--max-size=12", argument, "--nope")

        assert caught.value.status == 0
        assert caught.value.text == flags.usage(Options, "tool")

    @given(st.lists(st.text(max_size=8), max_size=6))
    def test_no_command_line_raises_anything_else(self, argv: list[str]) -> None:
        status = 0
        try:
            load(*argv)
        except CommandLineExit as early:
            status = early.status

        assert status in {0, 2}


class TestConfigFile:
    def test_keys_convert_to_their_options(self, tmp_path: Path) -> None:  # O-5, O-7
        options = load_config(
            tmp_path,
            """
            full_name = "n"
            node = 3
            max_size = 12
            wait = "1m30s"
            fast = false
            colour = "BLUE"
            peers = ["a:1", "b:2"]
            shares = [0.5, 1.0]
            unknown = { key = "ignored" }

            [table]
            max_size = "ignored too"
            """,
        )

        assert options == Options(
            config=options.config,
            name="n",
            node=3,
            max_size=12,
            wait_s=90.0,
            fast=False,
            colour=Colour.BLUE,
            peers=("a:1", "b:2"),
            shares=(0.5, 1.0),
        )

    @pytest.mark.parametrize(
        ("toml", "field", "value"),
        [
            ("wait = 2500", "wait_s", 2.5),
            ("wait = 0", "wait_s", 0.0),
            ('wait = "250ms"', "wait_s", 0.25),
            ('max_size = "12"', "max_size", 12),
            ('max_size = "012"', "max_size", 12),
            ("max_size = 0x10", "max_size", 16),
            ('fast = "F"', "fast", False),
            ("fast = 0", "fast", False),
            ("fast = 1", "fast", True),
            ('peers = "a:1,b:2"', "peers", ("a:1", "b:2")),
            ('peers = " a:1 , b:2 ,"', "peers", ("a:1", "b:2")),
            ('peers = ""', "peers", ()),
            ("peers = []", "peers", ()),
            ('shares = "0.5, 1.0"', "shares", (0.5, 1.0)),
            ("shares = [1, 0.5]", "shares", (1.0, 0.5)),
        ],
    )
    def test_conversions(self, tmp_path: Path, toml: str, field: str, value: object) -> None:
        assert getattr(load_config(tmp_path, toml), field) == value

    def test_flag_beats_config_beats_default(self, tmp_path: Path) -> None:  # O-6
        toml = 'max_size = 20\nfull_name = "file"\npeers = ["a"]\nfast = false'

        options = load_config(tmp_path, toml, "--max-size=10", "--peer=b", "--fast")

        assert options.max_size == 10  # given, though it is the default too
        assert options.peers == ("b",)
        assert options.fast is True
        assert options.name == "file"
        assert options.wait_s == 60.0

    def test_empty_list_flag_clears_the_list_of_the_file(self, tmp_path: Path) -> None:
        assert load_config(tmp_path, 'peers = ["a"]', "--peer=").peers == ()

    def test_options_of_the_command_line_alone_are_unknown_keys(self, tmp_path: Path) -> None:
        options = load_config(tmp_path, 'version = true\nconfig = "other"\nname = "n"')

        assert options == Options(config=options.config)

    def test_version_leaves_the_config_file_alone(self) -> None:
        assert load("--config=/no/such/file", "--version").version is True

    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            ("wait = 1.5", "value 1.5 (1m0s) for field wait - invalid duration value type float"),
            ("wait = true", "value true (1m0s) for field wait - invalid duration value type bool"),
            ('wait = "60"', "value 60 (1m0s) for field wait - parse error"),
            (
                "wait = 9223372036855",
                "value 9223372036855 (1m0s) for field wait - value out of range",
            ),
            ('max_size = "1k"', "value 1k (10) for field max_size - parse error"),
            ("max_size = 1.0", "value 1.0 (10) for field max_size - invalid int value type float"),
            ("max_size = true", "value true (10) for field max_size - invalid int value type bool"),
            (
                "max_size = 9223372036854775808",
                "value 9223372036854775808 (10) for field max_size - value out of range",
            ),
            ("fast = 2", "value 2 (true) for field fast - parse error"),
            ('fast = "maybe"', "value maybe (true) for field fast - parse error"),
            ("fast = 1.0", "value 1.0 (true) for field fast - invalid bool value type float"),
            (
                "full_name = 5",
                "value 5 (x ) for field full_name - invalid string value type int",
            ),
            ("peers = 5", "value 5 () for field peers - invalid list value type int"),
            ("peers = [5]", "value [5] () for field peers - invalid string value type int"),
            ("shares = 0.5", "value 0.5 () for field shares - invalid list value type float"),
            (
                "shares = [true]",
                "value [True] () for field shares - invalid float value type bool",
            ),
            ('shares = "x"', "value x () for field shares - parse error"),
        ],
    )
    def test_wrong_types(self, tmp_path: Path, toml: str, message: str) -> None:
        error = config_failure(tmp_path, toml)

        assert str(error) == f"Resolve failed to coerce {message}"
        assert error.level == "ERROR"

    @pytest.mark.parametrize(
        ("toml", "shown"), [('colour = "pink"', "pink"), ("colour = true", "true")]
    )
    def test_bad_special_value(self, tmp_path: Path, toml: str, shown: str) -> None:
        error = config_failure(tmp_path, toml)

        assert str(error) == f"failed parsing colour {shown}"
        assert error.level == "FATAL"

    def test_missing_file(self, tmp_path: Path) -> None:
        path = tmp_path / "none.cfg"

        with pytest.raises(ConfigError) as caught:
            load("--config", str(path))

        assert str(caught.value) == (
            f"failed to load config file {path} - open {path}: no such file or directory"
        )

    def test_directory_as_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"failed to load config file .*: is a directory"):
            load("--config", str(tmp_path))

    def test_not_toml(self, tmp_path: Path) -> None:
        error = config_failure(tmp_path, "this is = = not toml\n")

        assert str(error).startswith(f"failed to load config file {tmp_path / 'tool.cfg'} - ")
        assert "line 1" in str(error)

    def test_not_utf_8(self, tmp_path: Path) -> None:
        path = tmp_path / "tool.cfg"
        path.write_bytes(b'full_name = "\xff"')

        with pytest.raises(ConfigError, match=r"failed to load config file .*utf-8"):
            load("--config", str(path))


class TestBounds:
    @pytest.mark.parametrize("options", [Options(), Options(max_size=1), Options(max_size=99)])
    def test_within(self, options: Options) -> None:
        flags.check_bounds(options)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (Options(max_size=0), "--max-size must be at least 1"),
            (Options(max_size=100), "--max-size must be at most 99"),
            (Options(wait_s=0.0), "--wait must be at least 1ms"),
            (Options(wait_s=-60.0), "--wait must be at least 1ms"),
        ],
    )
    def test_beyond(self, options: Options, text: str) -> None:
        with pytest.raises(OptionsError) as caught:
            flags.check_bounds(options)

        assert str(caught.value) == text


class TestConfigValue:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("full_name", "x "),
            ("node", 5),
            ("wait", 60_000_000_000),
            ("fast", True),
            ("colour", 7),
            ("peers", ["a"]),
            ("shares", [0.5]),
        ],
    )
    def test_values_as_json(self, key: str, value: object) -> None:
        shown = flags.config_value(Options(peers=("a",), shares=(0.5,)), key)

        assert shown == value
        assert type(shown) is type(value)

    @pytest.mark.parametrize("key", ["version", "config", "name", "wait_s", "peer", "nope", ""])
    def test_other_keys(self, key: str) -> None:
        with pytest.raises(KeyError):
            flags.config_value(Options(), key)


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("0", 0.0),
            ("+0", 0.0),
            ("-0", 0.0),
            ("0s", 0.0),
            ("5s", 5.0),
            ("1m30s", 90.0),
            ("1500ms", 1.5),
            ("1.5h", 5400.0),
            ("250us", 0.00025),
            ("250µs", 0.00025),
            ("250\u03bcs", 0.00025),
            ("7ns", 7e-9),
            (".5s", 0.5),
            ("1.s", 1.0),
            ("-1.5h", -5400.0),
            ("+5s", 5.0),
            ("1h2m3s4ms5us6ns", 3723.004005006),
            ("1s1h", 3601.0),
            ("0.1s", 0.1),
            ("1.9ns", 1e-9),  # cut off, as Go does
            ("2562047h47m16.854775807s", 9223372036.854775807),
        ],
    )
    def test_parse(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == seconds

    @pytest.mark.parametrize(
        "text",
        [
            *("", "60", "-", "+", "s", ".s", "1", "1x", "1s ", " 1s", "1 s", "1s-1s", "--1s", "1d"),
            *("1S", "1_0s", "1e3s", "٣s", "00", "2562048h", "9" * 5000 + "s"),
        ],
    )
    def test_parse_refuses(self, text: str) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the reason is Go's bare "parse error"
            parse_duration(text)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0s"),
            (1e-9, "1ns"),
            (1.1e-6, "1.1µs"),
            (0.00025, "250µs"),
            (0.0022, "2.2ms"),
            (0.25, "250ms"),
            (0.025, "25ms"),
            (3.3, "3.3s"),
            (60, "1m0s"),
            (245.001, "4m5.001s"),
            (203.581426829, "3m23.581426829s"),
            (3600, "1h0m0s"),
            (18367.001, "5h6m7.001s"),
            (86400, "24h0m0s"),
            (-90, "-1m30s"),
            (-0.5, "-500ms"),
            (1e-10, "0s"),
            (0.9999999999, "1s"),
        ],
    )
    def test_format(self, seconds: float, text: str) -> None:
        assert format_duration(seconds) == text

    # Two roundings of a float: exact up to 26 days, and a nanosecond off at times beyond.
    @given(st.integers(-(2**51), 2**51))
    def test_format_and_parse_are_inverse(self, nanoseconds: int) -> None:
        text = format_duration(nanoseconds / 1e9)

        assert kinds.duration_ns(parse_duration(text)) == nanoseconds


class TestHelp:
    def test_usage(self) -> None:
        usage = flags.usage(Options, "tool")

        assert usage.startswith("Usage: tool [--flag=value ...]\n")
        assert "\nGeneral:\n  --version\n        print it\n  --config <file>\n" in usage
        assert '\n  --name <string>  (default: "x ")\n        who; `full_name` in' in usage
        assert "\n  --node <int>  (default: computed)\n" in usage
        assert "\n\nSizes:\n  --max-size <int>  (default: 10)\n" in usage
        assert "\n  --wait <duration>  (default: 1m0s)\n        how long\n" in usage
        assert "\n  --fast  (default: true)\n" in usage
        assert "\n  --colour <red|blue>  (default: red)\n" in usage
        assert "\n  --peer <string>\n" in usage

    def test_usage_fits_a_terminal(self) -> None:
        assert max(map(len, flags.usage(Options, "tool").splitlines())) <= 80

    def test_markdown_table(self) -> None:
        table = flags.markdown_table(Options)

        assert table.startswith(
            "**General**\n\n"
            "| flag | default | meaning |\n| --- | --- | --- |\n"
            "| `--version` | `false` | print it |\n| `--config` |  | a file |\n"
        )
        assert "| `--name` | `x ` | who; `full_name` in the config file |\n" in table
        assert "| `--node` | computed | which |\n\n**Sizes**\n\n| flag |" in table
        assert table.endswith("|\n")

    def test_version_text_holds_the_version_that_scripts_look_for(self) -> None:  # O-2
        text = flags.version_text("nsqlookupd")

        assert text.startswith("nsqlookupd v1.3.0 (built w/python3.")
        assert text.endswith(")")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Options that stand together in another dataclass."""

    head: str = flag("head", "", TEXT, "the beginning", accepts=(str.isalpha, "letters"))
    tail: int = flag("tail", 1, INT, "the end", maximum=9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    config: str = flag("config", "", TEXT, "a file", in_config=False)
    before: int = flag("before", 0, INT, "first")
    ends: Ends = group(Ends)  # noqa: RUF009
    after: int = flag("after", 0, INT, "last")


class TestGroups:
    def test_their_options_stand_in_the_place_of_the_group(self) -> None:
        names = list(flags.declared_flags(Whole))

        assert names == ["config", "before", "head", "tail", "after"]

    def test_values_of_flags_and_file_are_in_the_group(self, tmp_path: Path) -> None:
        path = tmp_path / "tool.cfg"
        path.write_text('head = "h"\ntail = 2\nafter = 3\n')

        options = flags.load(Whole, [f"--config={path}", "--tail=4"], program="tool")

        assert options == Whole(config=str(path), ends=Ends(head="h", tail=4), after=3)
        assert flags.config_value(options, "tail") == 4

    @pytest.mark.parametrize(
        ("ends", "reason"),
        [
            (Ends(head="h1"), "--head must be letters"),
            (Ends(head="h", tail=10), "--tail must be at most 9"),
        ],
    )
    def test_their_bounds_are_checked(self, ends: Ends, reason: str) -> None:
        with pytest.raises(OptionsError) as caught:
            flags.check_bounds(Whole(ends=ends))

        assert str(caught.value) == reason
