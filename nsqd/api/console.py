"""GET /console/...: the page for browsers, which asks the other routes for its figures.

Nothing is read before the first page is asked for. `/` sends browsers to the page; whoever does not
ask for HTML hears 404 there, as from Go's nsqd.
"""

import asyncio

from console.assets import PAGE_HEADERS, PAGES, Assets, Mode, load_assets
from nsqd.http.routes import HTML_CONTENT_TYPE
from nsqd.http.server import HttpError, Request, Response, Router, Style

BASE = "/console"
# Segments that the longest name of a file has.
_MAX_NAME_SEGMENTS = 4


class ConsoleRoutes:
    """The page and its files."""

    def __init__(self) -> None:
        self._assets: Assets | None = None
        self._page: Response | None = None

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        router.add("GET", "/", self._welcome)
        for path in PAGES:
            router.add("GET", BASE + path, self._show_page, style=Style.PLAIN)
        for count in range(1, _MAX_NAME_SEGMENTS + 1):
            name = "".join(f"/:segment{number}" for number in range(count))
            path = f"{BASE}/static/:version{name}"
            router.add("GET", path, self._show_file, style=Style.PLAIN, is_quiet=True)

    def _welcome(self, request: Request) -> Response:
        if b"text/html" not in request.headers.get(b"accept", b""):
            raise HttpError(404, "NOT_FOUND")
        return Response(302, headers={"Location": f"{BASE}/", "Vary": "Accept"})

    async def _show_page(self, _request: Request) -> Response:
        if self._page is None:
            assets = await self._load()
            html = assets.page(f"{BASE}/", Mode.NODE)
            self._page = Response(body=html, content_type=HTML_CONTENT_TYPE, headers=PAGE_HEADERS)
        return self._page

    async def _show_file(self, request: Request) -> Response:
        version, *segments = request.params
        asset = (await self._load()).find(version, "/".join(segments))
        if asset is None:
            raise HttpError(404, "NOT_FOUND")
        body, headers = asset.select(request.headers.get(b"accept-encoding", b""))
        if request.headers.get(b"if-none-match", b"").decode("latin-1") == asset.etag:
            return Response(304, headers=headers)
        return Response(body=body, content_type=asset.content_type, headers=headers)

    async def _load(self) -> Assets:
        """Return the files; read and compressed by a thread, the first time."""
        if self._assets is None:
            self._assets = await asyncio.to_thread(load_assets)
        return self._assets
