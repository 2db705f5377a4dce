"""Addresses, browsers and users that are not as the page would like them."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import OpenPage
from tests.support.daemon_process import DaemonProcess

StartNsqd = Callable[..., DaemonProcess]
NO_STORAGE = """for (const name of ['localStorage', 'sessionStorage']) {
  Object.defineProperty(window, name, { get() { throw new DOMException('denied'); } });
}"""


@pytest.fixture
def hostile(nsqd: DaemonProcess) -> DaemonProcess:
    nsqd.request("POST", "/topic/create?topic=hostiles")
    nsqd.request("POST", "/channel/create?topic=hostiles&channel=c")
    return nsqd


def test_a_browser_that_refuses_storage_shows_the_page(
    hostile: DaemonProcess, open_page: OpenPage
) -> None:
    # The first load has the storage, which is refused from the reload on.
    page = open_page(hostile)
    page.context.add_init_script(NO_STORAGE)
    page.on("pageerror", lambda error: pytest.fail(str(error)))

    page.goto(f"http://{hostile.http_address}/console/topics/hostiles")

    expect(page.get_by_role("heading", level=1)).to_have_text("hostiles")
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize(
    "stored", ["{broken", "null", "5", "[]", '{"refresh": -4, "columns": 5, "theme": 9}']
)
def test_settings_that_make_no_sense_are_not_taken(
    hostile: DaemonProcess, open_page: OpenPage, stored: str
) -> None:
    page = open_page(hostile, "/topics")
    page.evaluate("(stored) => { localStorage['nsq-console'] = stored; }", stored)

    page.reload()

    expect(page.locator("#topics")).to_be_visible()
    expect(page.locator("#interval")).to_have_value("5")


@pytest.mark.parametrize("path", ["/", "/topics/hostiles", "/topics/hostiles/c"])
def test_a_range_that_there_is_not_is_the_first_one(
    hostile: DaemonProcess, open_page: OpenPage, path: str
) -> None:
    page = open_page(hostile, f"{path}?range=2y")

    expect(page.get_by_role("button", name="10 min")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".u-legend").first).to_be_visible()


def test_back_shows_the_messages_of_the_address(start_nsqd: StartNsqd, open_page: OpenPage) -> None:
    nsqd = start_nsqd()
    nsqd.publish("turns", *(b"body %d" % number for number in range(50)))
    page = open_page(nsqd, "/topics/turns?tab=messages")
    first = page.locator(".preview").first
    expect(first).to_contain_text("body 0")
    page.get_by_label("Order").select_option("newest")
    expect(first).to_contain_text("body 49")

    page.go_back()

    expect(first).to_contain_text("body 0")
    page.go_forward()
    expect(first).to_contain_text("body 49")


def test_a_choice_during_a_look_is_not_lost(start_nsqd: StartNsqd, open_page: OpenPage) -> None:
    nsqd = start_nsqd()
    nsqd.publish("choices", *(b"body %d" % number for number in range(50)))
    page = open_page(nsqd, "/topics/choices?tab=messages")
    expect(page.locator(".preview").first).to_contain_text("body 0")

    def hold(route: Route) -> None:
        time.sleep(0.5)
        route.continue_()

    page.route("**/topic/peek?**", hold)
    page.get_by_label("Count").select_option("10")
    page.get_by_label("Order").select_option("newest")

    expect(page.locator(".preview").first).to_contain_text("body 49")
    expect(page.locator(".preview")).to_have_count(10)
