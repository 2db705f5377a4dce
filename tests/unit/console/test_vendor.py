"""The libraries of the page are the files that npm has: no line of them is changed."""

import hashlib
import re
from pathlib import Path

VENDOR = Path(__file__).parents[3] / "console" / "static" / "vendor"


def test_the_files_are_those_whose_digests_are_listed() -> None:
    readme = (VENDOR / "README.md").read_text("utf-8")
    pairs = re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, re.MULTILINE)
    listed = {name: digest for digest, name in pairs}
    found = {
        str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "README.md"
    }

    assert found == listed


def test_each_library_has_its_licence() -> None:
    for folder in VENDOR.iterdir():
        if folder.is_dir():
            assert "Permission is hereby granted" in (folder / "LICENSE").read_text("utf-8") or (
                "Redistribution and use" in (folder / "LICENSE").read_text("utf-8")
            )
