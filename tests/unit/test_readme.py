"""The README is true: its flags are those of the options."""

from pathlib import Path

from nsqd.config.options import markdown_table

README = Path(__file__).parents[2] / "README.md"


def test_flags_table_is_the_one_that_the_options_print() -> None:
    assert markdown_table().strip() in README.read_text(encoding="utf-8")
