"""One browser for a file of tests, one nsqd for all; each test has topics and a page of its own.

Playwright's loop runs in this thread while a browser is open, and no coroutine of another test
could run beside it: so the browser is closed before the tests of another file begin.

Every test fails on an error in the console, an uncaught exception, a report of the content security
policy, or a request to another origin.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from tests.console.cluster import Admin
from tests.support.daemon_process import DaemonProcess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
PATIENCE_MS = 20_000
# Two seconds between questions, the shortest that the page offers.
FASTER = "localStorage['nsq-console'] ??= JSON.stringify({ refresh: 2 })"

OpenPage = Callable[..., Page]

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("console"), "--mem-queue-size=100") as daemon:
        yield daemon


@pytest.fixture
def start_nsqd(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start an nsqd with flags of the test."""
    started: list[DaemonProcess] = []

    def start(*flags: str) -> DaemonProcess:
        daemon = DaemonProcess(tmp_path / str(len(started)), *flags)
        started.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in started:
        daemon.kill()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a page of a daemon; at the end none may have had a fault."""
    faults: list[str] = []
    contexts = []

    def open_page(
        daemon: DaemonProcess | Admin,
        path: str = "/",
        *,
        base: str = "/console",
        width: int = 1400,
        height: int = 900,
        scheme: str = "light",
        allowed_errors: str = "\0",
        headers: dict[str, str] | None = None,
    ) -> Page:
        """Args: allowed_errors: lines of the console with this text are part of the test."""
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            extra_http_headers=headers or {},
        )
        context.set_default_timeout(PATIENCE_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.add_init_script(FASTER)
        contexts.append(context)
        page = context.new_page()
        origin = f"http://{daemon.http_address}"

        def check_origin(request: Request) -> None:
            if not request.url.startswith((f"{origin}/", "blob:", "data:")):
                faults.append(f"request to {request.url}")

        def note(kind: str, text: str) -> None:
            if kind == "error" and allowed_errors not in text:
                faults.append(f"console: {text}")

        page.on("request", check_origin)
        page.on(
            "console",
            lambda message: note(message.type, f"{message.text} {message.location['url']}"),
        )
        page.on("pageerror", lambda error: faults.append(f"exception: {error}"))
        page.goto(f"{origin}{base}{path}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
