"""Take the pictures of docs/console.md: `make screenshots`. Needs Chromium, and two minutes."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.console.cluster import Cluster
from tests.console.traffic import CHANNELS, Traffic
from tests.support.daemon_process import DaemonProcess

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LATENCIES = ("--e2e-processing-latency-percentile=0.5,0.95,0.99",)
FLAGS = ("--no-sandbox", "--disable-gpu", "--force-color-profile=srgb")
# name, address, width, height, colours
PICTURES = (
    ("overview-light", "/", 1240, 830, "light"),
    ("overview-dark", "/", 1240, 830, "dark"),
    ("topic-light", "/topics/orders", 1240, 700, "light"),
    ("channel-dark", "/topics/orders/mail", 1240, 830, "dark"),
    ("messages-light", "/topics/payments.dead?tab=messages", 1240, 900, "light"),
    ("dead-letters-light", "/dead-letters", 1240, 330, "light"),
    ("nodes-dark", "/nodes", 1240, 260, "dark"),
    ("phone-dark", "/", 390, 780, "dark"),
)


def take(browser: Browser, address: str, seconds: int) -> None:
    """Open all pages, let their charts fill, then take the pictures."""
    pages: list[tuple[str, Page]] = []
    for name, path, width, height, scheme in PICTURES:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = context.new_page()
        page.goto(f"http://{address}{path}")
        pages.append((name, page))
    pages[0][1].wait_for_timeout(seconds * 1000)
    for name, page in pages:
        if name.startswith("messages"):
            page.locator(".preview").first.click()
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / f"{name}.png")


def main() -> None:
    """Run a cluster with traffic, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=100, help="to let the charts fill")
    seconds = parser.parse_args().seconds
    IMAGES.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(Path(directory), flags=LATENCIES) as cluster,
        sync_playwright() as playwright,
    ):
        for nsqd in cluster.nsqds:
            prepare(nsqd)
        traffics = [Traffic(nsqd.tcp_port) for nsqd in cluster.nsqds]
        for traffic in traffics:
            traffic.start()
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        take(browser, cluster.admin.http_address, seconds)
        browser.close()
        for traffic in traffics:
            traffic.stop()


def prepare(nsqd: DaemonProcess) -> None:
    """Make the topics and channels; what fails too often becomes a dead letter."""
    for topic, channels in CHANNELS.items():
        name = topic.replace("#", "%23")
        nsqd.request("POST", f"/topic/create?topic={name}")
        for channel in channels:
            nsqd.request("POST", f"/channel/create?topic={name}&channel={channel}")
    limits = {"max_attempts": 3, "dead_letter_topic_suffix": ".dead"}
    nsqd.request("POST", "/topic/limits?topic=payments", json.dumps(limits).encode())


if __name__ == "__main__":
    main()
