"""The table of files, the HTML, and what a browser loads first."""

import gzip
import re

import pytest

from console.assets import PAGE_HEADERS, Assets, Mode, accepts_gzip, load_assets

ASSETS = load_assets()
IMPORT = re.compile(r'^import\s[^;]*?from\s"(\.{1,2}/[^"]+)"|from"(\.{1,2}/[^"]+)"', re.MULTILINE)

MAX_PAGE_BYTES = 60_000
MAX_PAGE_WITH_CHARTS_BYTES = 90_000
MAX_MODULES = 20


def find_text(name: str) -> str:
    asset = ASSETS.find(ASSETS.version, name)
    assert asset is not None, name
    return asset.body.decode()


def static_imports(name: str) -> set[str]:
    """The modules that a module imports, and those that these import, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        for pair in IMPORT.findall(find_text(module)):
            path = pair[0] or pair[1]
            parts = module.split("/")[:-1]
            for part in path.split("/"):
                if part == "..":
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            waiting.append("/".join(parts))
    return found


@pytest.mark.parametrize("mode", list(Mode))
def test_the_modules_of_the_first_load_are_named_in_the_page(mode: Mode) -> None:
    needed = static_imports("main.js") | static_imports(f"source_{mode.value}.js")

    assert set(mode.first_modules) | {"main.js"} == needed
    page = ASSETS.page("/q/", mode).decode()
    for name in needed:
        assert f'"/q/static/{ASSETS.version}/{name}"' in page
    assert len(needed) <= MAX_MODULES


@pytest.mark.parametrize("mode", list(Mode))
def test_the_first_load_is_small(mode: Mode) -> None:
    def size(*names: str) -> int:
        assets = [ASSETS.find(ASSETS.version, name) for name in names]
        return sum(len(asset.zipped) for asset in assets if asset is not None)

    page = gzip.compress(ASSETS.page("/console/", mode))
    first = size("main.js", "theme.js", "style.css", "icon.svg", *mode.first_modules)
    charts = size("vendor/uplot/uPlot.iife.min.js", "vendor/uplot/uPlot.min.css")

    assert len(page) + first <= MAX_PAGE_BYTES
    assert len(page) + first + charts <= MAX_PAGE_WITH_CHARTS_BYTES


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    page = ASSETS.page("/console/", Mode.NODE).decode()

    assert re.findall(r"<script(?![^>]* src=)[^>]*>", page) == []
    assert "<style" not in page
    assert "style=" not in page
    assert "unsafe" not in PAGE_HEADERS["Content-Security-Policy"]


def test_the_base_is_escaped() -> None:
    assert b'"><script>' not in ASSETS.page('/"><script>/', Mode.NODE)


def test_only_names_of_the_table_and_this_version_are_found() -> None:
    assert ASSETS.find(ASSETS.version, "main.js") is not None
    assert ASSETS.find("0" * 16, "main.js") is None
    for name in ("", "../assets.py", "/etc/passwd", "main.js\0", "vendor/README.md", "vendor"):
        assert ASSETS.find(ASSETS.version, name) is None


def test_a_file_is_sent_as_the_client_takes_it() -> None:
    asset = ASSETS.find(ASSETS.version, "main.js")
    assert asset is not None

    plain, headers = asset.select(b"")
    zipped, zipped_headers = asset.select(b"br, gzip")

    assert plain == asset.body
    assert "Content-Encoding" not in headers
    assert gzip.decompress(zipped) == asset.body
    assert zipped_headers["Content-Encoding"] == "gzip"
    assert "immutable" in headers["Cache-Control"]
    assert headers["ETag"] == zipped_headers["ETag"]


@pytest.mark.parametrize(
    ("header", "is_accepted"),
    [
        (b"", False),
        (b"gzip", True),
        (b"deflate, gzip;q=1.0", True),
        (b"gzip;q=0.5", True),
        (b"*", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.0", False),
        (b"identity", False),
        (b"xgzip", False),
    ],
)
def test_who_accepts_gzip(header: bytes, *, is_accepted: bool) -> None:
    assert accepts_gzip(header) is is_accepted


def test_a_changed_file_changes_the_version() -> None:
    assert Assets({"a.js": b"1"}).version != Assets({"a.js": b"2"}).version
    assert Assets({"a.js": b"1"}).version == Assets({"a.js": b"1"}).version
