"""The files of the console, held as a table: no path of a request is ever joined to a directory.

`Assets` is read once, in a thread, when the first page is asked for. A file is served below
`static/<version>/`, where the version is a digest of all files: browsers keep it for ever, and a
new release has new addresses. The HTML is made here too, as it names these addresses.
"""

from __future__ import annotations

import enum
import functools
import gzip
import hashlib
import html
import re
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

# The addresses of the page, below its base; each is answered with the same HTML. Those of the Go
# nsqadmin are among them.
PAGES: Final = (
    "/",
    "/topics",
    "/topics/:topic",
    "/topics/:topic/:channel",
    "/topics/:topic/:channel/messages",
    "/nodes",
    "/nodes/:node",
    "/clients",
    "/dead-letters",
    "/settings",
    "/lookup",
    "/counter",
)

_SHARED_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE_HEADERS: Final = _SHARED_HEADERS | {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# A policy is that of the page which loads a file; with each file it would be a tenth of the load.
FILE_HEADERS: Final = _SHARED_HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}

_CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ENTRY: Final = "main.js"
# The modules of the first load besides: the browser fetches them at once, instead of finding one
# import after the other.
_FIRST: Final = (
    "api.js",
    "format.js",
    "model.js",
    "store.js",
    "table.js",
    "view_queues.js",
    "widgets.js",
    "vendor/lit-html/lit-html.js",
    "vendor/lit-html/directive.js",
    "vendor/lit-html/directive-helpers.js",
    "vendor/lit-html/directives/repeat.js",
)
_VERSION_CHARACTERS: Final = 16


class Mode(enum.Enum):
    """Whose figures the page shows: one nsqd's, or a cluster's."""

    NODE = "node"
    CLUSTER = "cluster"

    @property
    def first_modules(self) -> tuple[str, ...]:
        """The modules that a browser needs for the first page."""
        if self is Mode.NODE:
            return (*_FIRST, "history.js", "source_node.js")
        return (*_FIRST, "source_cluster.js")


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, held compressed: browsers take it so."""

    name: str
    content_type: str
    zipped: bytes
    etag: str

    @property
    def body(self) -> bytes:
        return gzip.decompress(self.zipped)

    def select(self, accept_encoding: bytes) -> tuple[bytes, dict[str, str]]:
        """Return the body for a client, and the headers that go with it."""
        headers = FILE_HEADERS | {"ETag": self.etag, "Vary": "Accept-Encoding"}
        if accepts_gzip(accept_encoding):
            return self.zipped, headers | {"Content-Encoding": "gzip"}
        return self.body, headers


class Assets:
    """All files by name, and the HTML that loads them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        digest = hashlib.sha256()
        for name, body in sorted(files.items()):
            digest.update(b"%s\0%d\0%s" % (name.encode(), len(body), body))
        self.version: Final = digest.hexdigest()[:_VERSION_CHARACTERS]
        self._files = {
            name: Asset(
                name,
                _CONTENT_TYPES["." + name.rpartition(".")[2]],
                gzip.compress(body, 9, mtime=0),
                f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            )
            for name, body in files.items()
        }
        self.names: Final = tuple(sorted(self._files))

    def find(self, version: str, name: str) -> Asset | None:
        """Return a file of this version; None for any other name."""
        return self._files.get(name) if version == self.version else None

    def page(self, base: str, mode: Mode) -> bytes:
        """Return the HTML.

        Args:
            base: where the page is, such as `/console/`; it ends with a slash.
        """
        root = f"{html.escape(base)}static/{self.version}"
        preloads = "\n".join(
            f'<link rel="modulepreload" href="{root}/{name}">' for name in mode.first_modules
        )
        return _PAGE.format(
            root=root, base=html.escape(base), mode=mode.value, entry=_ENTRY, preloads=preloads
        ).encode()


@functools.cache
def load_assets() -> Assets:
    """Read the files of the package; it takes some milliseconds, so call it in a thread."""
    files: dict[str, bytes] = {}
    _read_into(files, resources.files("console").joinpath("static"), "")
    return Assets(files)


def _read_into(files: dict[str, bytes], folder: Traversable, prefix: str) -> None:
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            _read_into(files, entry, f"{name}/")
        elif "." + name.rpartition(".")[2] in _CONTENT_TYPES:
            files[name] = entry.read_bytes()


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Say whether a client's `Accept-Encoding` names gzip, and not with a weight of zero."""
    return any(
        re.fullmatch(
            rb"\s*(gzip|\*)\s*(;\s*q=(0?\.0*[1-9]\d*|1(\.0*)?))?\s*", coding, re.IGNORECASE
        )
        for coding in accept_encoding.split(b",")
    )


_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>NSQ console</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="nsq-base" content="{base}">
<meta name="nsq-mode" content="{mode}">
<meta name="nsq-root" content="{root}">
<link rel="icon" href="{root}/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{root}/style.css">
<script src="{root}/theme.js"></script>
{preloads}
<script type="module" src="{root}/{entry}"></script>
</head>
<body>
<div id="app">
<p class="boot">NSQ console</p>
<noscript>The console needs JavaScript. <code>/stats</code> has the same figures.</noscript>
</div>
</body>
</html>
"""
