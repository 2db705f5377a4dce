"""The page of one nsqd: what it shows of queues, and what it does to them."""

import contextlib
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import OpenPage
from tests.console.consumer import Consumer
from tests.support.auth_server import AuthServer, allow, answer
from tests.support.certs import make_authority, make_server
from tests.support.daemon_process import HOST, DaemonProcess
from tests.support.waiting import wait_until

StartNsqd = Callable[..., DaemonProcess]

NONE = "\u2013"  # shown for what is not known


def create(nsqd: DaemonProcess, topic: str, *channels: str) -> None:
    nsqd.request("POST", f"/topic/create?topic={quote(topic)}")
    for channel in channels:
        nsqd.request("POST", f"/channel/create?topic={quote(topic)}&channel={quote(channel)}")


def publish(nsqd: DaemonProcess, topic: str, *bodies: bytes) -> None:
    nsqd.publish(quote(topic), *bodies)


def row(page: Page, key: str) -> str:
    """The text of a table's row."""
    return page.locator(f'tr[data-key="{key}"]').inner_text()


def refresh(page: Page) -> None:
    page.keyboard.press("Escape")
    page.locator("body").press("r")


def test_a_fresh_nsqd_says_how_to_publish_and_the_line_works(
    start_nsqd: StartNsqd, open_page: OpenPage
) -> None:
    nsqd = start_nsqd()
    page = open_page(nsqd)
    page.goto(f"http://{nsqd.http_address}/")
    expect(page).to_have_url(f"http://{nsqd.http_address}/console/")
    line = page.locator(".copy code").inner_text()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == line

    done = subprocess.run(line, shell=True, capture_output=True, check=True)

    assert done.stdout == b"OK"
    expect(page.locator('tr[data-key="greetings"]')).to_be_visible()
    expect(page.locator("#total-waiting dd")).to_have_text("1")


def test_publishing_with_the_button_moves_the_figures(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "moves", "c")
    page = open_page(nsqd, "/topics/moves")
    page.get_by_role("button", name="Publish…").first.click()
    page.get_by_label("Body").fill("hello")
    page.get_by_label("Times").fill("1000")
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()

    expect(page.get_by_text("1,000 messages published to moves.")).to_be_visible()
    expect(page.locator('tr[data-key="c"] td').nth(1)).to_contain_text("1,000")
    expect(page.locator(".u-legend").nth(1)).to_contain_text("1,000")
    assert page.locator("nsq-chart canvas").count() == 2

    with Consumer(nsqd.address, "moves", "c"):
        nsqd.wait_for_channel("moves", "c", depth=0, in_flight_count=0)
        expect(page.locator('tr[data-key="c"] td').nth(1)).to_contain_text("0 (0 + 0)")


def test_rates_skip_a_restart_of_the_node(start_nsqd: StartNsqd, open_page: OpenPage) -> None:
    nsqd = start_nsqd()
    nsqd.keeps_ports = True
    create(nsqd, "t", "c")
    publish(nsqd, "t", *[b"x"] * 50)
    page = open_page(nsqd, "/topics", allowed_errors="ERR_CONNECTION_REFUSED")
    expect(page.locator('tr[data-key="t"] td').nth(3)).not_to_have_text(NONE)

    nsqd.kill()
    banner = page.get_by_role("alert")
    expect(banner).to_contain_text("No connection to the daemon")
    page.set_viewport_size({"width": 800, "height": 900})
    assert (banner.bounding_box() or {"height": 99})["height"] < 60  # its button beside its text
    assert "stale" in page.locator("#state").inner_text()
    nsqd.start()
    publish(nsqd, "t", b"y")
    page.get_by_role("button", name="Ask now").click()

    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#state")).to_contain_text("live")
    rate = page.locator('tr[data-key="t"] td').nth(3).inner_text()
    assert rate == NONE or 0 <= float(rate) < 100


def test_figures_that_grow_old_are_not_called_good(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(nsqd, "/settings")
    page.clock.install()
    page.reload()
    state = page.locator("#state")
    expect(state).to_have_class("state good")
    page.route("**/stats?*", lambda _route: None)  # asked, and never answered
    page.clock.run_for(20_000)

    expect(state).to_have_text(re.compile(r"live \S \d+ s ago"))
    expect(state).to_have_class("state warn")


def test_sorting_with_the_keyboard_is_kept_in_the_address(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    for name, count in (("sort-a", 1), ("sort-b", 3), ("sort-c", 2)):
        publish(nsqd, name, *[b"x"] * count)
    page = open_page(nsqd, "/topics?q=sort-")

    def names() -> list[str]:
        return [each.get_attribute("data-key") or "" for each in page.locator("tr[data-key]").all()]

    assert names() == ["sort-b", "sort-c", "sort-a"]
    heading = page.get_by_role("columnheader", name="Topic")
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert names() == ["sort-a", "sort-b", "sort-c"]
    refresh(page)
    page.reload()
    page.wait_for_selector("tr[data-key]")
    assert names() == ["sort-a", "sort-b", "sort-c"]
    assert "sort=topic" in page.url


def test_a_filter_is_in_the_address_and_back_undoes_it(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "filter.orders")
    create(nsqd, "filter.mail")
    page = open_page(nsqd, "/topics")
    page.locator("#filter").press_sequentially("filter.ord")

    expect(page.locator("tr[data-key]")).to_have_count(1)
    assert "q=filter.ord" in page.url
    other = open_page(nsqd, "/topics?q=filter.ord")
    expect(other.locator("tr[data-key]")).to_have_count(1)
    page.go_back()
    expect(page.locator("#filter")).to_have_value("")
    expect(page.locator('tr[data-key="filter.mail"]')).to_be_visible()


def test_columns_and_range_are_chosen_and_kept(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "chosen", "c")
    page = open_page(nsqd, "/?q=chosen&range=1h")
    expect(page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    heading = page.get_by_role("columnheader", name="Messages")
    expect(heading).to_have_count(0)
    page.get_by_text("Columns").click()
    page.get_by_role("checkbox", name="Messages").check()
    expect(heading).to_be_visible()
    page.get_by_role("button", name="10 min").click()
    assert "range" not in page.url
    page.reload()
    expect(heading).to_be_visible()


def test_backlog_alone_can_be_shown(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "backlog.none")
    publish(nsqd, "backlog.some", b"x")
    page = open_page(nsqd, "/topics?q=backlog.")
    page.get_by_label("only with backlog").check()

    expect(page.locator("tr[data-key]")).to_have_count(1)
    assert "backlog=1" in page.url
    create(nsqd, "backlog.some", "c")
    topic = open_page(nsqd, "/topics/backlog.some")
    expect(topic.locator('tr[data-key="c"]')).to_be_visible()
    publish(nsqd, "backlog.some", *[b"x"] * 100)
    with Consumer(nsqd.address, "backlog.some", "c"):
        expect(topic.locator('tr[data-key="c"] td').nth(3)).to_have_text(re.compile("[1-9]"))
        expect(page.locator("tr[data-key]")).to_have_count(0)


@pytest.mark.parametrize(
    ("topic", "channel"),
    [
        ("x#ephemeral", "a.b-c_d#ephemeral"),
        ("..", "."),
        ("t" * 64, "c" * 64),
    ],
)
def test_odd_names_have_pages(
    nsqd: DaemonProcess, open_page: OpenPage, topic: str, channel: str
) -> None:
    create(nsqd, topic, channel)
    page = open_page(nsqd, f"/topics?q={quote(topic)}&sort=topic")
    page.get_by_role("link", name=topic, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(topic)
    page.get_by_role("link", name=channel, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(channel)
    expect(page.get_by_text("No consumer is connected.")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text(channel)
    page.get_by_role("link", name="Peek").click()
    expect(page.get_by_text("Nothing waits here right now.")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Nothing waits here right now.")).to_be_visible()


def test_what_is_not_there_says_so_with_a_way_back(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "there")
    page = open_page(nsqd, "/topics/missing")
    expect(page.get_by_text("No node has a topic missing.")).to_be_visible()
    page.get_by_role("link", name="All topics").click()
    expect(page.locator('tr[data-key="there"]')).to_be_visible()
    page = open_page(nsqd, "/topics/there/missing")
    expect(page.get_by_text("there has no channel missing.")).to_be_visible()
    page = open_page(nsqd, "/topics/missing/missing")
    page.locator("main .empty").get_by_role("link", name="All topics").click()
    expect(page.locator('tr[data-key="there"]')).to_be_visible()
    page = open_page(nsqd, "/nodes/other:4151")
    expect(page.get_by_text("No node other:4151 is known.")).to_be_visible()


@pytest.mark.parametrize(
    ("topic", "text", "back"),
    [
        ("missing", "No node has a topic missing.", "All topics"),
        ("there", "there has no channel missing.", "Back to there"),
    ],
)
def test_messages_of_what_is_not_there_say_so_with_a_way_back(
    nsqd: DaemonProcess, open_page: OpenPage, topic: str, text: str, back: str
) -> None:
    create(nsqd, "there")
    path = f"/topics/{topic}/missing/messages"
    page = open_page(nsqd, path, allowed_errors="Failed to load resource")
    expect(page.locator(".empty")).to_contain_text(text)
    page.get_by_role("link", name=back).click()
    expect(page.locator("main")).to_contain_text("there")


def test_a_part_of_the_page_that_did_not_come_can_be_asked_for_again(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "partial")
    page = open_page(nsqd, "/topics/partial", allowed_errors="Failed to load resource")
    page.route("**/view_limits.js", lambda route: route.abort())
    page.get_by_role("link", name="Limits").click()
    expect(page.get_by_text("This part of the page did not load.")).to_be_visible()
    page.unroute("**/view_limits.js")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_text("Attempts of a message")).to_be_visible()

    page.route("**/view_nodes.js", lambda route: route.abort())
    page.get_by_role("link", name="Nodes", exact=True).first.click()
    expect(page.locator(".empty")).to_contain_text("The daemon did not send this part")


def test_pausing_acts_at_once_and_can_be_undone(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "pauses", "c")
    page = open_page(nsqd, "/topics/pauses/c")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator(".badge", has_text="paused").first).to_be_visible()
    nsqd.wait_for_channel("pauses", "c", paused=True)

    page.get_by_role("button", name="Undo").click()
    nsqd.wait_for_channel("pauses", "c", paused=False)
    expect(page.locator(".badge", has_text="paused")).to_have_count(0)


def test_emptying_says_how_many_and_wants_the_name(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "empties", "c")
    publish(nsqd, "empties", *[b"x"] * 5)
    page = open_page(nsqd, "/topics/empties/c")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Empty…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 messages are there now")
    button = page.locator("#confirm")
    expect(button).to_be_disabled()
    dialog.get_by_role("textbox").fill("wrong")
    expect(button).to_be_disabled()
    dialog.get_by_role("textbox").fill("c")
    expect(button).to_be_enabled()
    button.dblclick()

    nsqd.wait_for_channel("empties", "c", depth=0)
    expect(page.get_by_text("empties/c emptied.")).to_be_visible()
    assert len([url for url in asked if "/channel/empty?" in url]) == 1


def test_deleting_names_consumers_and_goes_to_the_overview(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "deletes", "c")
    with Consumer(nsqd.address, "deletes", "c"):
        nsqd.wait_for_channel("deletes", "c", client_count=1)
        page = open_page(nsqd, "/topics/deletes")
        page.get_by_role("button", name="Delete…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 consumer is connected")
        dialog.get_by_role("textbox").fill("deletes")
        expect(page.locator("#confirm")).to_be_enabled()
        page.locator("#confirm").click()
        expect(page.get_by_text("deletes deleted.")).to_be_visible()
        expect(page).to_have_url(re.compile(r"/console/$"))


def test_bulk_actions_want_the_number_and_show_what_failed(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    names = [f"bulk-{number}" for number in range(4)]
    for name in names:
        create(nsqd, name)
    page = open_page(nsqd, "/topics?q=bulk-", allowed_errors="404")
    page.get_by_label("mark all").check()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("4 queues")
    dialog.get_by_role("textbox").fill("4")
    nsqd.request("POST", "/topic/delete?topic=bulk-2")
    expect(page.locator("#confirm")).to_be_enabled()
    page.locator("#confirm").click()

    expect(dialog).to_contain_text("3 done, 1 failed")
    expect(dialog).to_contain_text("TOPIC_NOT_FOUND")
    assert page.get_by_role("button", name="Try the rest again").is_visible()


def test_creating_says_what_is_wrong_with_a_name(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(nsqd, "/lookup")
    page.get_by_role("button", name="Create topic…").click()
    page.get_by_role("textbox", name="Topic").fill("no spaces")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#error-topic")).to_contain_text("Letters, digits")
    page.get_by_role("textbox", name="Topic").fill("made-here")
    page.get_by_role("textbox", name="Channel").fill("c")
    page.get_by_role("button", name="Create", exact=True).click()

    expect(page.get_by_text("made-here/c created.")).to_be_visible()
    assert nsqd.find_channel("made-here", "c") is not None


# Characters that the page lays out in one go, about.
MOST_AT_ONCE = 50_000
BIG_JSON = b'{"list":[' + b",".join([b'{"n":1234567890123456789}'] * 40_000) + b"]}"


def test_peeking_shows_json_digit_by_digit_and_changes_nothing(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    create(nsqd, "peeks", "c")
    publish(
        nsqd, "peeks", b'{"id":9007199254740993,"id":1,"x":[]}', deep, BIG_JSON[:900_000] + b"]}"
    )
    publish(nsqd, "peeks", BIG_JSON[:3] + b"<not json>")
    before = nsqd.find_channel("peeks", "c")
    page = open_page(nsqd, "/topics/peeks/c/messages")
    rows = page.locator(".messages > li")
    expect(rows).to_have_count(4)
    rows.nth(0).locator(".preview").click()
    expect(rows.nth(0).locator("pre")).to_have_text(
        '{\n  "id": 9007199254740993,\n  "id": 1,\n  "x": []\n}', use_inner_text=True
    )
    rows.nth(1).locator(".preview").click()
    expect(rows.nth(1).locator("pre")).to_contain_text("[")
    rows.nth(2).locator(".preview").click()
    expect(rows.nth(2).get_by_role("button", name="Show all")).to_be_visible()
    for _ in range(10):
        page.locator("#look").click()
    assert nsqd.find_channel("peeks", "c") == before


def test_a_long_body_is_shown_bit_by_bit_and_laid_out_once(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "long", "c")
    long = b'{"numbers": [' + b",".join(b"%d" % number for number in range(130_000)) + b"]}"
    broken = long[:60_000]
    publish(nsqd, "long", long, broken)
    page = open_page(nsqd, "/topics/long/c/messages")
    rows = page.locator(".messages > li")
    for at, end in ((0, "]}"), (1, broken.decode()[-5:])):
        row = rows.nth(at)
        row.locator(".preview").click()
        assert len(row.locator("pre").inner_text()) < MOST_AT_ONCE
        row.get_by_role("button", name="Show all").click()
        page.wait_for_function(
            "([at, end]) => document.querySelectorAll('.messages > li')[at]"
            ".querySelector('pre').textContent.replaceAll(/\\s/g, '').endsWith(end)",
            arg=[at, end],
        )
        assert row.get_by_role("button", name="Show all").count() == 0

    text = page.locator("pre").first.text_content() or ""
    assert "".join(text.split()) == long.decode().replace(" ", "")
    parts = page.locator("pre .part").all_text_contents()
    assert max(map(len, parts)) < MOST_AT_ONCE
    # The page renders every second; what is laid out stays.
    page.evaluate(
        """() => {
          window.decoded = 0;
          const { decode } = TextDecoder.prototype;
          TextDecoder.prototype.decode = function (...given) {
            window.decoded += 1;
            return decode.apply(this, given);
          };
        }"""
    )
    page.wait_for_timeout(2500)
    assert page.evaluate("window.decoded") == 0
    rows.first.get_by_role("button", name="hex").click()
    expect(rows.first.locator("pre")).to_contain_text("00000000  7b 22 6e 75")
    assert page.evaluate("window.decoded") == 0


def test_bytes_that_are_no_text_are_hex_and_saved_as_they_are(
    nsqd: DaemonProcess, open_page: OpenPage, tmp_path: Path
) -> None:
    body = bytes(range(256)) * 4
    publish(nsqd, "binary", body)
    page = open_page(nsqd, "/topics/binary?tab=messages")
    page.locator(".preview").click()
    expect(page.locator("pre")).to_contain_text("00000010  10 11 12 13 14 15 16 17 18")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    download.value.save_as(tmp_path / "body")

    saved = (tmp_path / "body").read_bytes()
    assert hashlib.sha256(saved).digest() == hashlib.sha256(body).digest()


def test_the_newest_messages_come_first_if_asked_for(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    # A hundred fit into memory.
    publish(nsqd, "newest", *(b"body %d" % number for number in range(300)))
    page = open_page(nsqd, "/topics/newest?tab=messages")
    expect(page.locator(".preview").first).to_contain_text("body 0")

    page.get_by_label("Order").select_option("newest first")

    expect(page.locator(".preview").first).to_contain_text("body 299")
    expect(page.locator(".preview").nth(19)).to_contain_text("body 280")
    expect(page.locator("main")).to_contain_text("from the back of the queue")
    assert "order=newest" in page.url
    page.locator(".messages input[type=checkbox]").first.check()
    replay = page.get_by_role("button", name="Replay marked…")
    expect(replay).to_have_attribute("title", re.compile("Only messages at the front"))
    page.reload()
    expect(page.locator(".preview").first).to_contain_text("body 299")


def test_a_preview_begins_at_its_arrow_and_tells_bytes_from_text(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    # The first bytes of the second are text, though of control characters only.
    publish(nsqd, "previews", "\u05e9\u05dc\u05d5\u05dd, <b>\n".encode(), bytes(range(256)))
    page = open_page(nsqd, "/topics/previews?tab=messages")
    expect(page.locator(".preview")).to_have_count(2)
    hebrew, binary = page.locator(".preview").all()

    expect(hebrew).to_contain_text("<b>\\n")
    button, text = hebrew.bounding_box(), hebrew.locator("bdi").bounding_box()
    assert button is not None
    assert text is not None
    assert text["x"] > button["x"] + 8  # the arrow stands before it, not behind
    expect(binary).to_contain_text("(binary) 00 01 02 03")


def test_hostile_bodies_are_text(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    body = "<script>window.ran=1</script></pre><img src=x onerror='window.ran=1'>\u202e\x00\x1b[31m"
    publish(nsqd, "hostile", body.encode())
    page = open_page(nsqd, "/topics/hostile?tab=messages")
    page.locator(".preview").click()

    expect(page.locator("pre")).to_contain_text("<script>window.ran=1</script></pre>")
    expect(page.locator("pre")).to_contain_text("\\u202e\\x00\\x1b[31m")
    assert page.evaluate("window.ran") is None


def test_publishing_base64_deferred_and_too_large(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "publishes", "c")
    with Consumer(nsqd.address, "publishes", "c") as consumer:
        page = open_page(nsqd, "/topics/publishes", allowed_errors="413")

        def send(body: str, encoding: str = "text", defer: str = "0") -> None:
            page.get_by_role("button", name="Publish…").first.click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("Body").fill(body)
            dialog.locator("select[name=encoding]").select_option(encoding)
            dialog.get_by_label("Deferred by").fill(defer)
            dialog.get_by_role("button", name="Publish").click()

        send("AP8=", "base64")
        expect(page.get_by_role("dialog")).to_have_count(0)
        wait_until(lambda: consumer.bodies == [b"\x00\xff"])
        send("later", defer="0.5")
        expect(page.get_by_role("dialog")).to_have_count(0)
        wait_until(lambda: consumer.bodies[1:] == [b"later"])
        send("no base64!", "base64")
        expect(page.locator("#error-body")).to_contain_text("no base64")
        page.keyboard.press("Escape")
        send("x" * (1024 * 1024 + 1))
        expect(page.get_by_role("dialog")).to_contain_text("MSG_TOO_BIG")


def test_limits_are_set_and_a_wrong_one_is_named(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "limited", "c")
    page = open_page(nsqd, "/topics/limited?tab=limits", allowed_errors="400")
    page.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("checkbox", name=re.compile("Age of a message")).check()
    dialog.get_by_role("textbox", name="Age of a message").fill("soon")
    dialog.get_by_role("button", name="Save on all nodes").click()
    expect(page.locator("#error-msg_ttl")).to_contain_text("Not valid")
    dialog.get_by_role("textbox", name="Age of a message").fill("1h30m")
    dialog.get_by_role("checkbox", name=re.compile("Suffix")).check()
    dialog.get_by_role("textbox", name=re.compile("Suffix")).fill(".dead")
    dialog.get_by_role("button", name="Save on all nodes").click()

    expect(page.get_by_text("Limits of limited set.")).to_be_visible()
    limits = json.loads(nsqd.request("GET", "/topic/limits?topic=limited"))
    assert limits["limits"]["msg_ttl"] == {"value": "1h30m0s", "source": "topic"}
    assert limits["dead_letter_topic"] == "limited.dead"
    publish(nsqd, "limited.dead", b"x")
    page = open_page(nsqd, "/dead-letters")
    expect(page.locator('tr[data-key="limited"]')).to_contain_text("limited.dead")


def test_clients_have_their_columns_and_filters(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "clients", "c")
    with (
        Consumer(nsqd.address, "clients", "c", hostname="web-1", user_agent="go-nsq/1.1.0"),
        Consumer(nsqd.address, "clients", "c", ready=0, hostname="<b>", user_agent="pynsq/0.9"),
    ):
        nsqd.wait_for_channel("clients", "c", client_count=2)
        page = open_page(nsqd, "/topics/clients/c")
        expect(page.locator("#clients tbody tr")).to_have_count(2)
        assert "<b>" in page.locator("#clients").inner_text()
        page.get_by_role("button", name="RDY 0").click()
        expect(page.locator("#clients tbody tr")).to_have_count(1)
        page = open_page(nsqd, "/clients?q=clients&by=library")
        expect(page.locator('tr[data-key="go-nsq/1.1.0"]')).to_be_visible()


def test_clients_show_tls_snappy_and_identity(
    start_nsqd: StartNsqd, open_page: OpenPage, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    server = make_server(tmp_path, authority)
    token = tmp_path / "token"
    token.write_text("of-the-tests\n")
    token.chmod(0o600)
    with AuthServer() as auth, contextlib.ExitStack() as clients:
        auth.grant("key", allow())
        nsqd = start_nsqd(
            *(f"--tls-cert={server.cert_file}", f"--tls-key={server.key_file}"),
            *(f"--auth-http-address={auth.address}", f"--http-auth-token-file={token}"),
        )
        key = tmp_path / "key"
        key.write_text("key\n")
        key.chmod(0o600)
        command = [sys.executable, "-m", "nsqd.cli", "tail", "secured", "--channel=c"]
        command += [f"--nsqd={HOST}:{nsqd.tcp_port}:{nsqd.http_port}", f"--auth-secret-file={key}"]
        for flags in (["--tls", f"--tls-ca={authority.cert_file}"], ["--snappy"], []):
            client = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)
            clients.callback(client.wait)
            clients.callback(client.kill)
        nsqd.wait_for_channel("secured", "c", client_count=3)
        page = open_page(nsqd, "/topics/secured/c")
        rows = page.locator("#clients tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.filter(has_text="TLS1.3")).to_have_count(1)
        expect(rows.filter(has_text="snappy")).to_have_count(1)
        identity = rows.first.get_by_role("link", name="auth: somebody")
        expect(identity).to_have_attribute("href", "http://somebody.example")
        expect(identity).to_have_attribute("rel", "noopener noreferrer")
        page.get_by_role("button", name="no TLS").click()
        expect(rows).to_have_count(2)


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,<script>alert(1)</script>"]
)
def test_an_identity_url_that_is_no_web_address_is_no_link(
    start_nsqd: StartNsqd, open_page: OpenPage, tmp_path: Path, address: str
) -> None:
    key, token = tmp_path / "key", tmp_path / "token"
    for path in (key, token):
        path.write_text("secret\n")
        path.chmod(0o600)
    with AuthServer() as auth:
        hostile = answer(allow()) | {"identity": "<b>mallory</b>", "identity_url": address}
        auth.answers["secret"] = (200, hostile)
        nsqd = start_nsqd(f"--auth-http-address={auth.address}", f"--http-auth-token-file={token}")
        command = [sys.executable, "-m", "nsqd.cli", "tail", "t", "--channel=c"]
        command += [f"--nsqd={HOST}:{nsqd.tcp_port}:{nsqd.http_port}", f"--auth-secret-file={key}"]
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            nsqd.wait_for_channel("t", "c", client_count=1)
            page = open_page(nsqd, "/topics/t/c")
            row = page.locator("#clients tbody tr")
            expect(row).to_contain_text("auth: <b>mallory</b>")
            expect(row.locator("a")).to_have_count(0)
        finally:
            client.kill()
            client.wait()


def test_a_browser_whose_clock_is_wrong_by_a_day_shows_right_ages(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    publish(nsqd, "aged", b"now")
    page = open_page(nsqd, "/settings")
    page.add_init_script(
        """const now = Date.now.bind(Date);
        Date.now = () => now() - 86_400_000;"""
    )
    page.goto(f"http://{nsqd.http_address}/console/topics/aged?tab=messages")
    age = page.locator(".messages > li .time small")
    expect(age).to_have_text(re.compile(r"^(|< 1 s|\d+(\.\d+)? (ms|s))$"))


def test_a_queue_that_grows_without_consumers_is_found(
    start_nsqd: StartNsqd, open_page: OpenPage
) -> None:
    nsqd = start_nsqd()
    create(nsqd, "grows", "c")
    page = open_page(nsqd)
    expect(page.get_by_text("No findings")).to_be_visible()

    def find() -> bool:
        publish(nsqd, "grows", b"x")
        return page.get_by_text("grows/c grows and has no consumer").is_visible()

    wait_until(find)
    page.get_by_role("link", name="grows/c grows and has no consumer").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("c")


def test_a_token_is_asked_for_and_stays_out_of_sight(
    start_nsqd: StartNsqd, open_page: OpenPage, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-4711\n")
    nsqd = start_nsqd(f"--http-auth-token-file={token}")
    page = open_page(nsqd, "/settings?tab=lookup", allowed_errors="status of 40")
    page.get_by_role("button", name="Create topic…").click()
    page.get_by_role("textbox", name="Topic").fill("guarded")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#token-error")).to_contain_text("not the right one")
    page.get_by_label("Token").fill("secret-4711")
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_text("guarded created.")).to_be_visible()
    assert "tab=lookup" in page.url
    assert "secret" not in page.url
    assert "secret" not in page.content()
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    assert "secret" not in nsqd.log


def test_draining_wants_the_name(start_nsqd: StartNsqd, open_page: OpenPage) -> None:
    nsqd = start_nsqd("--drain-timeout=300ms")
    publish(nsqd, "kept", b"x")
    page = open_page(nsqd, "/nodes", allowed_errors="ERR_CONNECTION_REFUSED")
    page.get_by_role("link", name=nsqd.http_address, exact=True).click()
    page.get_by_role("button", name="Drain…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 message is there now")
    dialog.get_by_role("textbox").fill(nsqd.http_address)
    expect(page.locator("#confirm")).to_be_enabled()
    page.locator("#confirm").click()

    assert nsqd.wait() == 0
    expect(page.get_by_role("dialog")).to_contain_text("The node has stopped.")


def test_dead_letters_are_replayed_to_their_topic(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "failing", "c")
    limits = {"max_attempts": 1, "dead_letter_topic_suffix": ".dead"}
    nsqd.request("POST", "/topic/limits?topic=failing", json.dumps(limits).encode())
    publish(nsqd, "failing.dead", b"one", b"two", b"three")
    page = open_page(nsqd, "/dead-letters")
    row = page.locator('tr[data-key="failing"]')
    expect(row).to_contain_text("failing.dead")
    expect(row.locator("td").nth(2)).to_have_text("3")
    row.get_by_role("button", name="Replay…").click()
    page.get_by_label("To a topic or channel").check()
    page.get_by_role("button", name="Replay", exact=True).click()

    expect(page.locator("#replayed")).to_contain_text("3 moved")
    with Consumer(nsqd.address, "failing", "c") as consumer:
        wait_until(lambda: sorted(consumer.bodies) == [b"one", b"three", b"two"])
    page.get_by_role("button", name="Close", exact=True).click()
    expect(row.locator("td").nth(2)).to_have_text("0")


def fail(nsqd: DaemonProcess, topic: str, channel: str, *bodies: bytes) -> None:
    """Let messages fail in a channel, after one attempt, and become dead letters."""
    limits = {"max_attempts": 1, "dead_letter_topic_suffix": ".dead"}
    nsqd.request("POST", f"/topic/limits?topic={topic}", json.dumps(limits).encode())
    publish(nsqd, topic, *bodies)
    with Consumer(nsqd.address, topic, channel, is_failing=True):
        nsqd.wait_for_channel(topic, channel, depth=0, in_flight_count=0)


def test_dead_letters_show_where_they_failed_and_go_back_there(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "origins", "bad")
    create(nsqd, "origins", "good")
    fail(nsqd, "origins", "bad", b"one", b"two")
    publish(nsqd, "origins.dead", b"by hand")

    page = open_page(nsqd, "/topics/origins.dead?tab=messages")
    expect(page.locator("#origins")).to_have_text("Failed: 2 of origins/bad (too many attempts).")
    first = page.locator(".messages > li").first
    expect(first.locator(".from")).to_have_text("origins/bad · 1 attempt")
    first.locator(".preview").click()
    for text in ("origins/bad", "too many attempts", "Attempts", "Failed at", "Published at"):
        expect(first.locator(".origin")).to_contain_text(text)
    expect(page.locator(".messages > li").nth(2).locator(".from")).to_have_count(0)

    page.goto(page.url.split("/topics")[0] + "/dead-letters")
    row = page.locator('tr[data-key="origins"]')
    expect(row.locator("td").nth(2)).to_have_text("3")
    row.get_by_role("button", name="Replay…").click()
    expect(page.get_by_label("To the channel each failed in")).to_be_checked()
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator("#replayed")).to_contain_text("2 moved of 3")
    expect(page.locator(".kept")).to_contain_text("1 message stays")
    expect(page.locator(".kept")).to_contain_text("it is not known where they failed")
    nsqd.wait_for_channel("origins", "bad", depth=2)
    nsqd.wait_for_channel("origins", "good", depth=2)  # its own two, and no copy
    with Consumer(nsqd.address, "origins", "bad") as consumer:
        wait_until(lambda: sorted(consumer.bodies) == [b"one", b"two"])


def test_marked_dead_letters_go_back_and_no_others(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    create(nsqd, "some", "c")
    fail(nsqd, "some", "c", b"stays", b"goes")
    publish(nsqd, "some.dead", b"by hand")
    page = open_page(nsqd, "/topics/some.dead?tab=messages")
    messages = page.locator(".messages > li")
    expect(messages).to_have_count(3)
    messages.filter(has_text="by hand").get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay marked…").click()
    expect(page.get_by_label("To the channel each failed in")).to_be_disabled()
    expect(page.get_by_role("dialog")).to_contain_text("Where they failed is not known there")
    page.get_by_role("button", name="Cancel").click()
    messages.filter(has_text="by hand").get_by_role("checkbox").uncheck()
    messages.filter(has_text="goes").get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay marked…").click()
    page.get_by_role("button", name="Replay", exact=True).click()

    expect(page.locator("#replayed")).to_contain_text("1 moved of 1")
    page.get_by_role("button", name="Close", exact=True).click()
    expect(messages).to_have_count(2)
    with Consumer(nsqd.address, "some", "c") as consumer:
        wait_until(lambda: consumer.bodies == [b"goes"])


def test_marked_messages_are_dropped_and_no_others(
    nsqd: DaemonProcess, open_page: OpenPage
) -> None:
    publish(nsqd, "drops", b"keep", b"drop me")
    page = open_page(nsqd, "/topics/drops?tab=messages")
    page.locator(".messages > li").nth(1).get_by_role("checkbox").check()
    page.get_by_role("button", name="Drop marked…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("drops")
    expect(page.locator("#confirm")).to_be_enabled()
    page.locator("#confirm").click()

    expect(page.locator(".messages > li")).to_have_count(1)
    expect(page.locator(".messages > li")).to_contain_text("keep")


def test_a_connection_is_closed(nsqd: DaemonProcess, open_page: OpenPage) -> None:
    create(nsqd, "closes", "c")
    consumer = Consumer(nsqd.address, "closes", "c", hostname="stuck")
    nsqd.wait_for_channel("closes", "c", client_count=1)
    page = open_page(nsqd, "/topics/closes/c")
    page.get_by_role("button", name="Close…").click()
    page.locator("#confirm").click()

    nsqd.wait_for_channel("closes", "c", client_count=0)
    consumer.close()
