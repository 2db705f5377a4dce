"""How the page behaves: keyboard, contrast, small screens, many rows, few requests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import OpenPage
from tests.support.daemon_process import DaemonProcess

TOPIC_COUNT = 2000
MAX_ROWS = 80
MAX_REQUESTS = 24

PAGES = (
    "/",
    "/topics/manners",
    "/topics/manners?tab=messages",
    "/topics/manners?tab=limits",
    "/topics/manners/c",
    "/nodes",
    "/clients",
    "/dead-letters",
    "/settings",
    "/settings?tab=about",
)

# Text whose colour is too near to that of what lies behind it (WCAG 1.4.3: 4.5 to 1); while a
# dialog is open, of this alone.
LOW_CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((each) => {
      const share = each / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length && (colour[3] ?? 1) === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const root = document.querySelector("dialog") ?? document.body;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    const isDead = element.closest("[disabled], [aria-disabled], noscript, option, .u-legend");
    if (!text || isDead || !element.checkVisibility()) continue;
    const ink = parse(getComputedStyle(element).color);
    const [light, dark] = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""

# Things to press that are smaller than a fingertip (WCAG 2.5.8: 24 px), links in a text apart.
SMALL_TARGETS = """() => [...document.querySelectorAll(
  'button, select, input:not([type=checkbox], [type=radio]), summary, nav a')]
  .filter((each) => each.checkVisibility() && !each.closest('.skip'))
  .filter((each) => each.closest('dialog') || !document.querySelector('dialog'))
  .map((each) => [each.textContent.trim().slice(0, 30), each.getBoundingClientRect()])
  .filter(([, box]) => box.width > 0 && (box.width < 24 || box.height < 24) && box.left >= 0)
  .map(([text, box]) => `${text} ${box.width}x${box.height}`)"""


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("crowded")) as nsqd:
        for number in range(TOPIC_COUNT):
            nsqd.request("POST", f"/topic/create?topic=topic-{number:04}")
        yield nsqd


@pytest.fixture
def manners(nsqd: DaemonProcess) -> DaemonProcess:
    nsqd.request("POST", "/topic/create?topic=manners")
    nsqd.request("POST", "/channel/create?topic=manners&channel=c")
    nsqd.publish("manners", b'{"a": 1}')
    return nsqd


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(manners: DaemonProcess, open_page: OpenPage, scheme: str) -> None:
    page = open_page(manners, scheme=scheme)
    for path in PAGES:
        visit(page, manners, path)
        assert page.evaluate(LOW_CONTRAST) == [], path


def visit(page: Page, nsqd: DaemonProcess, path: str) -> None:
    """Open another address, and wait until its content is there."""
    page.goto(f"http://{nsqd.http_address}/console{path}")
    page.wait_for_selector("html[data-ready]")
    page.wait_for_function(
        "() => !/^(Loading|Looking)/m.test(document.querySelector('main').innerText)"
    )


def test_a_phone_shows_all_of_it(manners: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(manners, width=360, height=640)
    for path in PAGES:
        visit(page, manners, path)
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1], path
        assert page.evaluate(SMALL_TARGETS) == [], path
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Nodes").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Nodes")


def test_the_theme_is_chosen_and_kept(manners: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(manners, "/settings")
    back = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(back)
    page.locator("#set-theme").select_option("dark")
    dark = page.evaluate(back)
    page.reload(wait_until="commit")
    page.wait_for_selector("html[data-theme]", state="attached")

    assert light != dark
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(back) == dark


def test_the_keyboard_goes_everywhere(manners: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(manners, "/topics?q=manners")
    page.locator("body").press("j")
    assert page.evaluate("document.activeElement.closest('tr').dataset.key") == "manners"
    page.keyboard.press("x")
    expect(page.get_by_text("1 marked")).to_be_visible()
    page.get_by_role("link", name="manners", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("manners")
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Nodes")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("manners/c")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("c")


def test_a_dialog_keeps_the_focus_and_gives_it_back(
    manners: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(manners, "/topics/manners")
    opener = page.get_by_role("button", name="Publish…").first
    opener.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Publish")).to_be_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body"
            " || Boolean(document.activeElement.closest('dialog'))"
        )
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()


def test_figures_that_tick_are_not_read_aloud(manners: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(manners)
    inside = "[...document.querySelectorAll('[aria-live]')].some((e) => e.querySelector('td, dd'))"
    assert page.evaluate(inside) is False
    names = page.evaluate(
        "[...document.querySelectorAll('button, a, input, select')]"
        ".filter((e) => e.checkVisibility())"
        ".filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length))"
        ".map((e) => e.outerHTML)"
    )
    assert names == []


def test_two_thousand_topics_are_windowed(crowded: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(crowded, "/topics?sort=topic")
    rows = page.locator("tr[data-key]")
    expect(page.locator("#topics")).to_have_attribute("aria-rowcount", str(TOPIC_COUNT + 1))
    assert rows.count() <= MAX_ROWS
    height = page.evaluate("document.documentElement.scrollHeight")
    for share in (0.25, 0.5, 1.0):
        page.evaluate(f"scrollTo(0, document.documentElement.scrollHeight * {share})")
        number = int((TOPIC_COUNT - 1) * share)
        expect(page.locator(f'tr[data-key="topic-{number:04}"]')).to_be_attached()
        assert rows.count() <= MAX_ROWS
    assert abs(page.evaluate("document.documentElement.scrollHeight") - height) < 5
    page.locator("#filter").fill("topic-1234")
    expect(rows).to_have_count(1)


def test_the_first_load_asks_little(manners: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(manners, "/settings")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.context.clear_cookies()
    page.goto(f"http://{manners.http_address}/console/")
    page.wait_for_selector("nsq-chart canvas")

    assert len(asked) <= MAX_REQUESTS, asked


def test_a_hidden_page_asks_nothing(manners: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(manners)
    page.locator("#interval").select_option("2")
    asked: list[str] = []
    hide = """(state) => {
      Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, "hidden")
    page.wait_for_timeout(300)
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
    with page.expect_request(lambda request: "/stats" in request.url):
        page.evaluate(hide, "visible")
