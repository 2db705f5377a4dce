"""What the eye would see: nothing lies over anything else, is cut off, or moves at a refresh."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.cluster import Admin, Cluster
from tests.console.conftest import OpenPage
from tests.support.daemon_process import LOOKUPD, DaemonProcess, WaitingDaemon

LONG_TOPIC = "a-very-long-topic-name.with_everything-that.is_allowed-in_names1"
LONG_CHANNEL = "channel-with-a-name.of_sixty-four_characters-so-that_it.is-long1"
WIDTHS = (1400, 800, 360)
PAGES = (
    "/",
    "/topics",
    "/topics/looks",
    "/topics/looks?tab=nodes",
    "/topics/looks?tab=limits",
    f"/topics/{LONG_TOPIC}",
    f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}",
    f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}/messages",
    "/nodes",
    "/clients",
    "/dead-letters",
    "/lookup",
    "/settings?tab=about",
    "/counter",
)

# Pairs of texts that lie over each other, and what sticks out of the page at the right. Of a text
# counts only what its scrolled or cut parents show; while a dialog is open, only what is in it.
FAULTS = """() => {
  const boxes = [];
  const root = document.querySelector('dialog') ?? document.body;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { parentElement: element, data } = walker.currentNode;
    const isLeftOut = element.closest(
      '.top, .notices, .skip, .hidden, option, datalist, noscript, svg');
    if (!data.trim() || isLeftOut || !element.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    // The last cell of a row stays in sight, and the others pass below it.
    const last = element.closest('tr')?.querySelector('.act');
    const isBelow = last && !last.contains(element) && getComputedStyle(last).position === 'sticky';
    for (const rect of range.getClientRects()) {
      let { left, right, top, bottom } = rect;
      if (isBelow) right = Math.min(right, last.getBoundingClientRect().left);
      for (let each = element; each !== document.body; each = each.parentElement) {
        const { overflowX, overflowY } = getComputedStyle(each);
        if (overflowX === 'visible' && overflowY === 'visible') continue;
        const edge = each.getBoundingClientRect();
        left = Math.max(left, edge.left);
        right = Math.min(right, edge.right);
        top = Math.max(top, edge.top);
        bottom = Math.min(bottom, edge.bottom);
      }
      const isSeen = right - left > 2 && bottom - top > 2;
      if (isSeen) boxes.push({ node: walker.currentNode, left, right, top, bottom });
    }
  }
  const text = (box) => box.node.data.trim().slice(0, 40);
  const faults = [];
  boxes.forEach((a, at) => {
    for (const b of boxes.slice(at + 1)) {
      const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      // The dots of a text that is cut are a box of their own.
      if (a.node !== b.node && width > 2 && height > 3) faults.push(`${text(a)} over ${text(b)}`);
    }
    if (a.right > innerWidth + 1) faults.push(`${text(a)} at ${a.right}`);
  });
  if (document.documentElement.scrollWidth > innerWidth) faults.push('it scrolls sideways');
  return faults;
}"""

# Two frames: tables and charts fit themselves to a new width.
SETTLED = """() => new Promise(
  (done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"""
HEADINGS = """() => [...document.querySelectorAll('.scroller th')]
  .map((each) => each.getBoundingClientRect().x)"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with long names and a queue of all states; the second does not answer."""
    with Cluster(tmp_path_factory.mktemp("looks"), nsqd_count=2) as cluster:
        cluster.create("looks", *(f"channel-{number}" for number in range(5)), LONG_CHANNEL)
        cluster.create(LONG_TOPIC, LONG_CHANNEL)
        node, silent = cluster.nsqds
        node.request("POST", f"/topic/pause?topic={LONG_TOPIC}")
        node.publish("looks", *[b'{"a": 1}'] * 300)
        silent.request("POST", "/topic/create?topic=unseen")
        silent.publish("unseen", b"x")
        limits = {"max_attempts": 3, "dead_letter_topic_suffix": ".dead"}
        node.request("POST", "/topic/limits?topic=looks", json.dumps(limits).encode())
        cluster.admin.wait_for_topic("unseen")
        silent.suspend()
        yield cluster
        silent.resume()


def visit(page: Page, admin: Admin, path: str) -> None:
    """Open a page, and wait until it is whole."""
    page.goto(f"http://{admin.http_address}{path}")
    page.wait_for_selector("html[data-ready]")
    page.wait_for_function(
        "() => !/^(Loading|Looking|Asking)/m.test(document.querySelector('main').innerText)"
    )


def test_nothing_lies_over_anything_else(cluster: Cluster, open_page: OpenPage) -> None:
    page = open_page(cluster.admin, base="", allowed_errors="Failed to load resource")
    expect(page.locator("main")).to_contain_text("1 silent")
    found: dict[str, list[str]] = {}
    for path in PAGES:
        visit(page, cluster.admin, path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(SETTLED)
            if faults := page.evaluate(FAULTS):
                found[f"{path} {width}"] = faults

    assert found == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_leaves_its_badges_in_sight(
    cluster: Cluster, open_page: OpenPage, width: int
) -> None:
    page = open_page(cluster.admin, "/topics", base="", width=width)
    cell = page.locator(f'tr[data-key="{LONG_TOPIC}"] td.name')
    expect(cell.locator(".badge")).to_have_text(["paused on 1 of 2 nodes", "1 node silent"])
    edge = cell.bounding_box()
    assert edge is not None
    for badge in cell.locator(".badge").all():
        box = badge.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= edge["x"] + edge["width"] + 1
    expect(cell.locator("a")).to_have_attribute("title", LONG_TOPIC)


def test_the_buttons_of_a_long_channel_are_in_sight(cluster: Cluster, open_page: OpenPage) -> None:
    page = open_page(cluster.admin, f"/topics/{LONG_TOPIC}", base="")
    expect(page.locator("#channels td.act button").last).to_be_in_viewport(ratio=0.99)
    assert page.locator(".scroller").evaluate("(each) => each.scrollWidth - each.clientWidth") == 0


@pytest.mark.parametrize(
    "path",
    [
        f"/topics/{LONG_TOPIC}",
        "/topics/looks?tab=nodes",
        f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}",
    ],
)
def test_what_can_be_done_is_in_sight_where_a_table_is_too_wide(
    cluster: Cluster, open_page: OpenPage, path: str
) -> None:
    page = open_page(cluster.admin, path, base="", width=800, height=1800)
    buttons = page.locator("td.act button")
    expect(buttons.first).to_be_visible()
    for each in buttons.all():
        expect(each).to_be_in_viewport(ratio=0.99)


@pytest.mark.parametrize("count", [1_234_567, 12_345_678, 1_234_567_890])
@pytest.mark.parametrize("width", [1400, 1010, 800, 360])
def test_a_large_count_stays_on_its_line(
    cluster: Cluster, open_page: OpenPage, width: int, count: int
) -> None:
    page = open_page(cluster.admin, "/settings", base="", width=width)

    def inflate(route: Route) -> None:
        detail = route.fetch().json()
        route.fulfill(json={**detail, "depth": count, "in_flight": count, "deferred": 7})

    page.route("**/api/v2/topics?*", inflate)
    visit(page, cluster.admin, f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}")
    figures = page.locator(".tile dd")
    expect(figures.first).to_have_text(f"{count:,}")
    heights = figures.evaluate_all("(all) => all.map((each) => each.offsetHeight)")
    assert len(set(heights[:3])) == 1
    assert heights[0] < 30


def test_a_note_is_as_large_below_any_figure(cluster: Cluster, open_page: OpenPage) -> None:
    page = open_page(cluster.admin, "/settings", base="", width=800)

    def inflate(route: Route) -> None:
        overview = route.fetch().json()
        overview["totals"]["waiting"] = 12_345_678
        route.fulfill(json=overview)

    page.route("**/api/v2/overview*", inflate)
    visit(page, cluster.admin, "/")
    expect(page.locator("#total-waiting dd")).to_contain_text("12,345,678")
    sizes = page.locator(".tile .note").evaluate_all("(all) => all.map((e) => e.offsetHeight)")
    assert len(sizes) == 2
    assert len(set(sizes)) == 1


def test_a_question_says_which_figures_are_old(cluster: Cluster, open_page: OpenPage) -> None:
    page = open_page(cluster.admin, f"/topics/{LONG_TOPIC}", base="")
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "1 node does not answer: the last figures are counted."
    )


@pytest.mark.parametrize("path", ["", f"/{LONG_CHANNEL}"])
def test_the_buttons_of_a_queue_stand_on_one_line(
    cluster: Cluster, open_page: OpenPage, path: str
) -> None:
    page = open_page(cluster.admin, f"/topics/{LONG_TOPIC}{path}", base="", width=800)
    buttons = page.locator(".bar:has(h1) :is(button, a.button)")
    expect(buttons.first).to_be_visible()
    tops = {(each.bounding_box() or {"y": -1})["y"] for each in buttons.all()}
    assert len(tops) == 1


def test_a_name_of_a_user_leaves_room_for_the_bar(cluster: Cluster, open_page: OpenPage) -> None:
    with cluster.make_admin("--admin-user=ada", "--acl-http-header=X-U") as admin:
        user = "somebody.with-a-name.of-many-characters@department.example.org"
        page = open_page(admin, base="", width=1400, headers={"X-U": user})
        expect(page.locator(".who")).to_contain_text("viewer")
        assert (page.locator(".top").bounding_box() or {"height": 99})["height"] < 50
        assert page.evaluate("document.documentElement.scrollWidth") == 1400
        expect(page.locator(".who")).to_have_attribute("title", re.compile(re.escape(user)))


def test_a_topic_that_only_nsqlookupd_knows_is_not_counted(
    cluster: Cluster, open_page: OpenPage
) -> None:
    cluster.lookupd.fetch("POST", "/topic/create?topic=forgotten")
    page = open_page(cluster.admin, "/lookup", base="", allowed_errors="Failed to load resource")
    row = page.locator('tr[data-key="forgotten"]')
    row.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "No node is known to have it; nsqlookupd forgets it."
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_path_of_a_page_squeezes_no_name(
    cluster: Cluster, open_page: OpenPage, width: int
) -> None:
    path = f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}/messages"
    page = open_page(
        cluster.admin, path, base="", width=width, allowed_errors="Failed to load resource"
    )
    assert page.locator(".crumbs a").first.evaluate("(link) => link.getClientRects().length") == 1
    assert page.locator(".crumbs a").first.evaluate("(link) => link.offsetHeight") < 30


@pytest.mark.parametrize("width", WIDTHS)
def test_a_legend_has_room_for_every_line(
    cluster: Cluster, open_page: OpenPage, width: int
) -> None:
    page = open_page(cluster.admin, "/topics/looks", base="", width=width)
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        edge = chart.bounding_box()
        lines = chart.locator(".u-series:not(:first-child)")
        expect(lines.first).to_be_visible()
        assert edge is not None
        for line in lines.all():
            box = line.locator(".u-value").bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= edge["y"] + edge["height"]
            assert box["x"] + box["width"] <= edge["x"] + edge["width"]
            assert (line.locator(".u-label").bounding_box() or {"width": 0})["width"] > 10


@pytest.mark.parametrize("width", [*WIDTHS, 1240])
def test_a_legend_cuts_none_of_our_own_words(
    cluster: Cluster, open_page: OpenPage, width: int
) -> None:
    page = open_page(cluster.admin, base="", width=width, height=1800)
    expect(page.locator(".u-legend")).to_have_count(3)
    cut = page.locator(".u-label:visible").evaluate_all(
        "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((e) => e.innerText)"
    )

    assert cut == []


def test_an_age_that_grows_moves_no_column(cluster: Cluster, open_page: OpenPage) -> None:
    page = open_page(cluster.admin, f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}", base="")
    badge = page.locator(".badge.age").first
    expect(badge).to_contain_text("no answer")
    show = "(badge, text) => { badge.lastChild.data = text; }"
    columns = []
    for text in ("no answer 9 s", "no answer 59 min"):
        badge.evaluate(show, text)
        columns.append(page.evaluate(HEADINGS))

    assert columns[0] == columns[1] != []


@pytest.mark.parametrize("width", [1400, 800])
def test_figures_of_a_node_that_grow_move_no_column(
    cluster: Cluster, open_page: OpenPage, width: int
) -> None:
    page = open_page(cluster.admin, "/nodes", base="", width=width)
    expect(page.locator(".health.bad")).to_contain_text("no answer")
    show = """([age, size]) => {
      const last = (selector) => [...document.querySelector(selector).childNodes]
        .findLast((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
      last('#nodes .health.bad').data = age;
      last('#nodes td.disk').data = size;
    }"""
    columns = []
    for texts in (["9 s", "1 B"], ["59 min", "123 GB"]):
        page.evaluate(show, texts)
        columns.append(page.evaluate(HEADINGS))

    assert columns[0] == columns[1] != []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_age_of_the_figures_moves_nothing_in_the_bar(
    cluster: Cluster, open_page: OpenPage, width: int
) -> None:
    page = open_page(cluster.admin, "/settings", base="", width=width)
    seen = set()
    for text in ("live", "live · 9 s ago", "live · 30 s ago"):
        page.locator("#state").evaluate("(state, text) => { state.lastChild.data = text; }", text)
        seen.add(
            page.evaluate(
                "['.search', '.menu-button', '#interval', '#theme'].map("
                "(each) => document.querySelector(each).getBoundingClientRect().x).join()"
            )
        )

    assert len(seen) == 1


def test_a_note_stands_below_its_figure(cluster: Cluster, open_page: OpenPage) -> None:
    page = open_page(cluster.admin, f"/nodes/{cluster.nsqds[0].http_address}", base="")
    note = page.locator(".tile", has_text="Disk used").locator(".note")
    expect(note).to_contain_text("free")

    # Beside it, a figure that grows would push it into another line, and the page down.
    figure_top, note_top = note.evaluate(
        "(note) => [note.parentElement, note].map((each) => each.getBoundingClientRect().top)"
    )
    assert note_top > figure_top + 15


def test_a_node_that_does_not_answer_is_not_called_empty(
    cluster: Cluster, open_page: OpenPage
) -> None:
    page = open_page(
        *(cluster.admin, "/topics/unseen?tab=messages"),
        base="",
        allowed_errors="Failed to load resource",
    )
    expect(page.locator(".empty")).to_contain_text("No node could be looked into.")

    page.goto(f"http://{cluster.admin.http_address}/nodes")
    row = page.locator(f'tr[data-key="{cluster.nsqds[1].http_address}"]')
    expect(row.locator('td[data-label="In/s"]')).to_have_text("\u2013")
    row.get_by_role("link").click()
    drain = page.get_by_role("button", name="Drain…")
    expect(drain).to_have_attribute("title", "It does not answer")


def test_a_cluster_without_a_node_says_how_one_joins(tmp_path: Path, open_page: OpenPage) -> None:
    with WaitingDaemon(tmp_path / "lookupd", command=LOOKUPD) as lookupd:
        flag = f"--lookupd-http-address={lookupd.http_address}"
        with Admin(tmp_path / "admin", flag, "--poll-interval=1s") as admin:
            page = open_page(admin, base="")
            expect(page.locator("main")).to_contain_text("No nsqd is known yet.")
            expect(page.locator("main")).to_contain_text("There is no node to look at.")

            lookup = f"--lookupd-tcp-address={lookupd.tcp_address}"
            with DaemonProcess(tmp_path / "nsqd", lookup):
                expect(page.locator(".empty")).to_have_text(
                    re.compile(r"No topic yet\.\s*Publish the first message to any nsqd")
                )
                page.goto(f"http://{admin.http_address}/settings?tab=audit")
                download = page.get_by_role("button", name="Download")
                expect(download).to_have_attribute("title", "There is nothing to download")
