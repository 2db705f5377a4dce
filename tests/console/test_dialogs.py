"""What the eye would see of dialogs, and where the keyboard is in them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import OpenPage
from tests.console.consumer import Consumer
from tests.console.test_looks import FAULTS, LONG_CHANNEL, LONG_TOPIC
from tests.console.test_manners import LOW_CONTRAST, SMALL_TARGETS
from tests.support.daemon_process import DaemonProcess

# With the suffix of its dead letters it is as long as a name may be.
FAILING = LONG_TOPIC[:59]
SUFFIX = ".dead"
LONG_HOST = "worker-" + "h" * 57
DIALOGS = (
    ("/topics", "Publish…"),
    ("/topics", "Create topic…"),
    (f"/topics/{LONG_TOPIC}", "Create channel…"),
    (f"/topics/{LONG_TOPIC}", "Publish…"),
    (f"/topics/{LONG_TOPIC}", "Empty…"),
    (f"/topics/{LONG_TOPIC}", "Delete…"),
    (f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}", "Delete…"),
    (f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}", "Close…"),
    (f"/topics/{FAILING}?tab=limits", "Edit…"),
    ("/dead-letters", "Replay…"),
    ("/dead-letters", "Drop…"),
    ("/nodes/NODE", "Drain…"),
)
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
IS_IN_DIALOG = "Boolean(document.activeElement.closest('dialog'))"
UNNAMED = """() => [...document.querySelectorAll(
  'dialog button, dialog input, dialog select, dialog textarea, dialog progress')]
  .filter((each) => !(each.matches('button') && each.textContent.trim()))
  .filter((each) => !each.ariaLabel && !each.labels?.length)
  .map((each) => each.outerHTML)"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A node with long names, a consumer, and messages that failed."""
    with DaemonProcess(tmp_path_factory.mktemp("dialogs")) as nsqd:
        for topic in (LONG_TOPIC, FAILING, "quiet"):
            nsqd.request("POST", f"/topic/create?topic={topic}")
            nsqd.request("POST", f"/channel/create?topic={topic}&channel={LONG_CHANNEL}")
        nsqd.publish(LONG_TOPIC, b"1", b"2")
        limits = {"max_attempts": 1, "dead_letter_topic_suffix": SUFFIX}
        nsqd.request("POST", f"/topic/limits?topic={FAILING}", json.dumps(limits).encode())
        nsqd.publish(FAILING, *[b"x"] * 9)
        with Consumer(nsqd.address, FAILING, LONG_CHANNEL, is_failing=True):
            nsqd.wait_for_channel(FAILING, LONG_CHANNEL, depth=0, in_flight_count=0)
        nsqd.publish(FAILING + SUFFIX, b"by hand")
        queue = (LONG_TOPIC, LONG_CHANNEL)
        with Consumer(nsqd.address, *queue, hostname=LONG_HOST, client_id="c" * 64):
            nsqd.wait_for_channel(LONG_TOPIC, LONG_CHANNEL, client_count=1, depth=0)
            yield nsqd


def open_dialog(page: Page, node: DaemonProcess, path: str, button: str) -> Locator:
    """Open a page, then a dialog of it, and wait until it is whole."""
    page.goto(f"http://{node.http_address}/console{path.replace('NODE', node.http_address)}")
    page.get_by_role("button", name=button, exact=True).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog).not_to_contain_text("Counting")
    return dialog


@pytest.mark.parametrize("width", [800, 360])
def test_a_dialog_shows_all_of_it(node: DaemonProcess, open_page: OpenPage, width: int) -> None:
    page = open_page(node, width=width, height=640)
    found: dict[str, list[str]] = {}
    for path, button in DIALOGS:
        dialog = open_dialog(page, node, path, button)
        faults = [
            *page.evaluate(FAULTS),
            *page.evaluate(SMALL_TARGETS),
            *page.evaluate(UNNAMED),
        ]
        if dialog.evaluate("(each) => each.scrollWidth > each.clientWidth"):
            faults.append("it scrolls sideways")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            faults += page.evaluate(LOW_CONTRAST)
        if faults:
            found[f"{path} {button}"] = faults
        # However long the form is.
        for each in dialog.locator("footer button").all():
            expect(each).to_be_in_viewport(ratio=0.99)
        assert page.evaluate(IS_IN_DIALOG), (path, button)

    assert found == {}


def test_a_choice_of_names_is_as_wide_as_its_dialog(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(node, width=800)
    dialog = open_dialog(page, node, "/dead-letters", "Replay…")
    dialog.get_by_label("To a topic or channel").check()

    wide = "(each) => each.getBoundingClientRect().width"
    for name in ("to", "to_channel"):
        choice = dialog.locator(f"select[name={name}]")
        assert choice.evaluate(wide) == dialog.locator("form > p").evaluate(wide)


@pytest.mark.parametrize(
    ("path", "button", "final"),
    [
        ("/topics", "Publish…", "Publish"),
        ("/topics", "Create topic…", "Create"),
        (f"/topics/{FAILING}?tab=limits", "Edit…", "Save on all nodes"),
    ],
)
def test_an_error_moves_nothing_and_has_the_focus(
    node: DaemonProcess, open_page: OpenPage, path: str, button: str, final: str
) -> None:
    page = open_page(node, width=800)
    dialog = open_dialog(page, node, path, button)
    boxes = dialog.locator("input:not([type=checkbox])")
    for check in dialog.get_by_role("checkbox").all():
        check.check()
    places = [dialog.bounding_box(), boxes.last.bounding_box()]
    boxes.first.fill("bad name!")
    dialog.get_by_role("button", name=final, exact=True).click()

    expect(dialog.locator(".error").first).not_to_be_empty()
    expect(boxes.first).to_be_focused()
    expect(boxes.first).to_have_attribute("aria-invalid", "true")
    assert [dialog.bounding_box(), boxes.last.bounding_box()] == places
    edges = "(each) => [each.getBoundingClientRect().top, each.getBoundingClientRect().bottom]"
    top, _ = dialog.locator(".error").first.evaluate(edges)
    _, bottom = boxes.first.evaluate(edges)
    assert top - bottom > 2  # the ring of the focus lies between them


def test_a_refused_publish_leaves_the_focus_where_it_was(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(node, allowed_errors="Failed to load resource")
    page.route("**/pub?*", lambda route: route.fulfill(status=413, body="MSG_TOO_BIG"))
    dialog = open_dialog(page, node, f"/topics/{LONG_TOPIC}", "Publish…")
    dialog.get_by_label("Body").fill("x")
    final = dialog.get_by_role("button", name="Publish", exact=True)
    final.focus()
    page.keyboard.press("Enter")

    expect(dialog).to_contain_text("MSG_TOO_BIG")
    expect(final).to_be_focused()


def test_a_question_that_wants_no_name_any_more_keeps_the_focus(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(node)
    dialog = open_dialog(page, node, f"/topics/quiet/{LONG_CHANNEL}", "Empty…")

    expect(dialog.get_by_role("textbox")).to_have_count(0)
    expect(page.locator("#confirm")).to_be_enabled()
    assert page.evaluate(IS_IN_DIALOG)


def test_a_replay_keeps_the_focus_and_names_its_bar(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(node, width=800)
    dialog = open_dialog(page, node, "/dead-letters", "Replay…")
    expect(dialog.get_by_label("To the channel each failed in")).to_be_focused()
    dialog.get_by_label("At most per second").fill("1")
    dialog.get_by_role("button", name="Replay", exact=True).click()
    stop = dialog.get_by_role("button", name="Stop")
    expect(stop).to_be_focused()
    edge = dialog.bounding_box()
    bar = dialog.get_by_role("progressbar", name="moved").bounding_box()
    assert edge is not None
    assert bar is not None
    assert edge["x"] + 10 < bar["x"]
    assert bar["x"] + bar["width"] < edge["x"] + edge["width"] - 10
    page.keyboard.press("Enter")

    expect(dialog.get_by_role("alert")).to_contain_text("moved of 10.")
    expect(dialog.get_by_role("button", name="Close", exact=True).last).to_be_focused()


def test_a_field_that_is_not_ticked_looks_dead(node: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(node)
    dialog = open_dialog(page, node, f"/topics/{FAILING}?tab=limits", "Edit…")
    shown = "(field) => Number(getComputedStyle(field).opacity)"

    assert dialog.locator("input[name=max_depth]").evaluate(shown) < 1
    dialog.get_by_label("Messages in a queue").first.check()
    assert dialog.locator("input[name=max_depth]").evaluate(shown) == 1


def test_one_thing_that_failed_is_not_counted(node: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(node, f"/topics/{LONG_TOPIC}", allowed_errors="Failed to load resource")
    page.route("**/topic/pause*", lambda route: route.fulfill(status=500, body="the disk is full"))
    page.get_by_role("button", name="Pause", exact=True).first.click()

    dialog = page.get_by_role("dialog", name="Not done")
    expect(dialog).to_contain_text("the disk is full")
    expect(dialog.get_by_role("button", name="Try again")).to_be_visible()


def test_closing_a_connection_tells_of_messages_only_if_there_are(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    path = f"/topics/{LONG_TOPIC}/{LONG_CHANNEL}"
    page = open_page(node)
    dialog = open_dialog(page, node, path, "Close…")
    expect(dialog).to_contain_text("Most libraries connect again.")
    expect(dialog).not_to_contain_text("in flight")


def test_each_key_stands_alone(node: DaemonProcess, open_page: OpenPage) -> None:
    page = open_page(node)
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys").locator("kbd").all_inner_texts()
    assert keys == [
        *"/",
        "g o",
        "g t",
        "g n",
        "g c",
        "g d",
        "g s",
        "j",
        "k",
        "Enter",
        *"xpr?",
        "Esc",
    ]


def test_draining_can_be_left_and_says_so(tmp_path: Path, open_page: OpenPage) -> None:
    with DaemonProcess(tmp_path, "--drain-timeout=60s") as nsqd:
        nsqd.request("POST", "/topic/create?topic=kept")
        nsqd.request("POST", "/channel/create?topic=kept&channel=c")
        nsqd.publish("kept", b"x")
        page = open_page(nsqd)
        dialog = open_dialog(page, nsqd, "/nodes/NODE", "Drain…")
        dialog.get_by_role("textbox").fill(nsqd.http_address)
        expect(page.locator("#confirm")).to_be_enabled()
        page.locator("#confirm").click()

        progress = page.get_by_role("dialog", name="Draining")
        expect(progress).to_contain_text("The node goes on when this is closed.")
        expect(progress.get_by_role("progressbar", name="drained")).to_be_visible()
        progress.get_by_role("button", name="Close", exact=True).last.click()
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_long_names_of_dead_letters_leave_their_buttons_in_sight(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(node, "/dead-letters", width=800)
    for name in ("Replay…", "Drop…"):
        expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=0.99)
    assert page.evaluate(FAULTS) == []


def test_long_names_of_clients_stay_in_their_columns(
    node: DaemonProcess, open_page: OpenPage
) -> None:
    page = open_page(node, "/clients", width=360)
    expect(page.locator("#clients")).to_be_visible()
    assert page.evaluate(FAULTS) == []

    page.set_viewport_size({"width": 1400, "height": 900})
    expect(page.get_by_role("button", name="Close…")).to_be_in_viewport(ratio=0.99)
    assert page.locator(".scroller").evaluate("(each) => each.scrollWidth - each.clientWidth") == 0
