"""README and docs are true: their flags are those of the options."""

from pathlib import Path

from nsqadmin.options import Options as AdminOptions
from nsqd.config import flags
from nsqd.config.options import markdown_table

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_flags_table_is_the_one_that_the_options_print() -> None:
    assert markdown_table().strip() in README.read_text(encoding="utf-8")


def test_flags_of_nsqadmin_are_in_its_manual() -> None:
    manual = (ROOT / "docs" / "nsqadmin.md").read_text(encoding="utf-8")

    assert flags.markdown_table(AdminOptions).strip() in manual
