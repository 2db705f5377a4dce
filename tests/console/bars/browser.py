"""A page that is measured: its traffic, its tasks, its heap, by the protocol of DevTools."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from playwright.sync_api import Browser, CDPSession, Page

SLOWED = 4
T = TypeVar("T")
_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
# Set before any script of the page: the clock can be put on, and frames and rows are noted.
_PROBE = """
(() => {
  let skipped = 0;
  const now = performance.now.bind(performance);
  const date = Date.now.bind(Date);
  performance.now = () => now() + skipped;
  Date.now = () => date() + skipped;
  const probe = (window.probe = { rowsAt: null, skip: (ms) => (skipped += ms) });
  const look = () => {
    if (!document.querySelector("tr[data-key]")) return requestAnimationFrame(look);
    // Painted, and free to do something else.
    requestAnimationFrame(() => setTimeout(() => (probe.rowsAt = now())));
  };
  requestAnimationFrame(look);
  probe.scroll = (ms, step) => new Promise((resolve) => {
    const frames = [];
    let last = null;
    let most = 0;
    const began = now();
    const move = (time) => {
      if (last !== null) frames.push(time - last);
      last = time;
      most = Math.max(most, document.querySelectorAll("tr[data-key]").length);
      if (now() - began > ms) return resolve({ frames, rows: most });
      if (scrollY + innerHeight >= document.documentElement.scrollHeight - 1) scrollTo(0, 0);
      else scrollBy(0, step);
      requestAnimationFrame(move);
    };
    requestAnimationFrame(move);
  });
})();
"""


@dataclass
class Traffic:
    """What a page has loaded."""

    urls: dict[str, str] = field(default_factory=dict)
    # What came from the cache has no size, or is not in here.
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def wire_bytes(self) -> int:
        """Compressed bytes that came over the network, heads included."""
        return sum(self.sizes.values())

    @property
    def asked(self) -> list[str]:
        """The addresses that were asked over the network."""
        return [url for number, url in self.urls.items() if self.sizes.get(number)]


class Task(NamedTuple):
    """One task of the page's main thread: how long it took, and of that the processor."""

    ms: float
    cpu_ms: float


class MeasuredPage:
    """A page in a browser of its own; a context that closes it."""

    def __init__(self, browser: Browser, *, is_slowed: bool = False, refresh_s: int = 0) -> None:
        """Args: refresh_s: how often the page asks; 0 for never."""
        self._context = browser.new_context(viewport={"width": 1400, "height": 900})
        self._context.set_default_timeout(60_000)
        self._context.add_init_script(
            _PROBE + f"localStorage['nsq-console'] = JSON.stringify({{ refresh: {refresh_s} }});"
        )
        self.page: Page = self._context.new_page()
        self.cdp: CDPSession = self._context.new_cdp_session(self.page)
        self.traffic = Traffic()
        self.cdp.send("Network.enable")
        self.cdp.send("Performance.enable")
        self.cdp.on("Network.requestWillBeSent", self._note_request)
        self.cdp.on("Network.loadingFinished", self._note_size)
        self.cdp.on("Network.loadingFailed", self._note_failure)
        if is_slowed:
            self.cdp.send("Emulation.setCPUThrottlingRate", {"rate": SLOWED})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def _note_request(self, event: dict[str, Any]) -> None:
        self.traffic.urls[event["requestId"]] = event["request"]["url"]

    def _note_size(self, event: dict[str, Any]) -> None:
        self.traffic.sizes[event["requestId"]] = int(event["encodedDataLength"])

    def _note_failure(self, event: dict[str, Any]) -> None:
        raise RuntimeError(f"{self.traffic.urls[event['requestId']]}: {event['errorText']}")

    def open(self, url: str, *, has_rows: bool = True) -> None:
        """Go somewhere, and wait until the page is ready and has rows."""
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")
        if has_rows:
            self.page.wait_for_function("() => window.probe.rowsAt !== null")

    def first_paint_ms(self) -> float:
        """Return when the first content was painted."""
        script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        self.page.wait_for_function(f"() => {script} !== null")
        return float(self.page.evaluate(script))

    def rows_ms(self) -> float:
        """Return when the rows were painted and the page was free again."""
        return float(self.page.evaluate("window.probe.rowsAt"))

    def heap_bytes(self) -> int:
        """Return the heap in use after the garbage is gone."""
        for _ in range(3):
            self.cdp.send("HeapProfiler.collectGarbage")
        return int(self._metrics()["JSHeapUsedSize"])

    def _metrics(self) -> dict[str, float]:
        metrics = self.cdp.send("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in metrics}

    def refresh(self) -> None:
        """Press the key that asks now, and wait for what the page does with the answers.

        While the page is still busy with the round before, the key begins no other: it is pressed
        again.
        """
        count = len(self.traffic.urls)
        while len(self.traffic.urls) == count:
            self.page.keyboard.press("r")
            self.page.evaluate(_FRAME)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has had all answers and has shown them."""
        while True:
            count = len(self.traffic.urls)
            while len(self.traffic.sizes) < count:
                self.page.wait_for_timeout(5)
            self.page.evaluate(_FRAME)
            if len(self.traffic.urls) == count:
                return

    def script_ms(self) -> float:
        """Return how long scripts have run so far."""
        return self._metrics()["ScriptDuration"] * 1000


def trace_tasks(browser: Browser, page: Page, run: Callable[[], T]) -> tuple[T, list[Task]]:
    """Run something, and return the tasks of the page's main thread meanwhile, longest first."""
    browser.start_tracing(page=page, categories=["toplevel"])
    try:
        result = run()
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        Task(event["dur"] / 1000, event.get("tdur", event["dur"]) / 1000)
        for event in events
        if event["name"] == "ThreadControllerImpl::RunTask"
        and event["ph"] == "X"
        and (event["pid"], event["tid"]) in mains
    ]
    return result, sorted(tasks, reverse=True)
