"""The page of nsqadmin: the same page, over three nodes."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.cluster import Cluster
from tests.console.conftest import OpenPage
from tests.console.consumer import Consumer
from tests.support.http_client import fetch
from tests.support.waiting import wait_until

MAX_REQUESTS = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_totals_are_the_sums_of_the_nodes(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("sums", "c")
    for count, nsqd in enumerate(cluster.nsqds, start=1):
        nsqd.publish("sums", *[b"x"] * count)
    page = open_page(cluster.admin, "/topics?q=sums", base="")
    row = page.locator('tr[data-key="sums"] td')
    expect(row.nth(2)).to_have_text("6")
    waiting = sum(
        queue["depth"]
        for nsqd in cluster.nsqds
        for topic in json.loads(nsqd.request("GET", "/stats?format=json"))["topics"]
        for queue in (topic, *topic["channels"])
    )
    page.goto(f"http://{cluster.admin.http_address}/")
    expect(page.locator("#total-waiting dd")).to_have_text(str(waiting))
    page.goto(f"http://{cluster.admin.http_address}/topics?q=sums")
    page.get_by_role("link", name="sums", exact=True).click()
    expect(page).to_have_url(re.compile(r"/topics/sums$"))
    page.locator(".tabs").get_by_role("link", name="Nodes").click()
    expect(page.locator("#topic-nodes tbody tr")).to_have_count(3)


def test_the_first_load_asks_little(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("first", "c")
    page = open_page(cluster.admin, "/settings", base="")
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    page.goto(f"http://{cluster.admin.http_address}/")
    page.wait_for_selector("nsq-chart canvas")
    page.wait_for_load_state("networkidle")

    assert len(asked) <= MAX_REQUESTS, asked
    assert not [url for url in asked if "/api/v2/nodes" in url]


def test_pausing_one_node_is_said_on_topic_and_channel(
    cluster: Cluster, open_page: OpenPage
) -> None:
    cluster.create("partly", "c")
    page = open_page(cluster.admin, "/topics/partly/c", base="")
    node = cluster.nsqds[0].http_address
    page.locator(f'tr[data-key="{node}"]').get_by_role("button", name="Pause").click()

    expect(page.locator(".bar .badge")).to_have_text("paused on 1 of 3 nodes")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".bar .badge")).to_have_count(0)
    page.get_by_role("button", name="Pause", exact=True).first.click()
    for nsqd in cluster.nsqds:
        nsqd.wait_for_channel("partly", "c", paused=True)
    audit = open_page(cluster.admin, "/settings?tab=audit", base="")
    expect(audit.locator("#audit tbody tr").first).to_contain_text("partly/c")


def test_deleting_is_done_everywhere(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("goes", "c")
    cluster.nsqds[0].publish("goes", b"1", b"2")
    page = open_page(cluster.admin, "/topics/goes", base="", allowed_errors="404")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 messages are there now, on 3 nodes")
    dialog.get_by_role("textbox").fill("goes")
    expect(page.locator("#confirm")).to_be_enabled()
    page.locator("#confirm").click()
    expect(page.get_by_text("goes deleted.")).to_be_visible()
    for nsqd in cluster.nsqds:
        wait_until(lambda nsqd=nsqd: nsqd.find_channel("goes", "c") is None)  # type: ignore[misc]


def test_publishing_peeking_and_clients_go_through_nsqadmin(
    cluster: Cluster, open_page: OpenPage
) -> None:
    cluster.create("through", "c")
    node = cluster.nsqds[1]
    page = open_page(cluster.admin, "/topics/through/c/messages", base="")
    expect(page.get_by_text("Nothing waits here right now.")).to_be_visible()
    page.get_by_role("link", name="through", exact=True).click()
    page.get_by_role("button", name="Publish…").first.click()
    page.get_by_label("Body").fill('{"id": 9007199254740993}')
    page.locator("select[name=node]").select_option(node.http_address)
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.get_by_text("1 message published to through.")).to_be_visible()
    assert node.wait_for_channel("through", "c", depth=1)
    page = open_page(cluster.admin, "/topics/through/c/messages", base="")
    page.locator(".preview").click()
    expect(page.locator("pre")).to_contain_text('"id": 9007199254740993')

    with Consumer(node.address, "through", "c", ready=0, hostname="web-9"):
        node.wait_for_channel("through", "c", client_count=1)
        page = open_page(cluster.admin, "/clients?q=web-9", base="")
        expect(page.locator("#clients tbody tr")).to_have_count(1)


def test_dead_letters_of_several_nodes_go_back_to_the_channel_that_failed(
    cluster: Cluster, open_page: OpenPage
) -> None:
    cluster.create("died", "bad", "good")
    for nsqd in cluster.nsqds:
        limits = b'{"max_attempts": 1, "dead_letter_topic_suffix": ".dead"}'
        nsqd.request("POST", "/topic/limits?topic=died", limits)
    for nsqd in cluster.nsqds[:2]:
        nsqd.publish("died", b"lost")
        with Consumer(nsqd.address, "died", "bad", is_failing=True):
            nsqd.wait_for_channel("died", "bad", depth=0, in_flight_count=0)
    page = open_page(cluster.admin, "/dead-letters", base="")
    row = page.locator('tr[data-key="died"]')
    expect(row.locator("td").nth(2)).to_have_text("2")
    row.get_by_role("link", name="Peek").click()
    expect(page.locator("#origins")).to_have_text("Failed: 2 of died/bad (too many attempts).")
    page.locator(".preview").first.click()
    expect(page.locator(".origin")).to_contain_text("Published at")
    page.go_back()
    row.get_by_role("button", name="Replay…").click()
    page.get_by_role("button", name="Replay", exact=True).click()

    expect(page.locator("#replayed")).to_contain_text("2 moved of 2")
    for nsqd in cluster.nsqds[:2]:
        nsqd.wait_for_channel("died", "bad", depth=1)
        nsqd.wait_for_channel("died", "good", depth=1)  # its own, and no copy


def test_limits_that_differ_are_named(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("differs")
    cluster.nsqds[2].request("POST", "/topic/limits?topic=differs", b'{"max_attempts": 7}')
    page = open_page(cluster.admin, "/topics/differs?tab=limits", base="")
    expect(page.locator(".warning")).to_contain_text(f"{cluster.nsqds[2].http_address} differs")


def test_the_addresses_of_the_go_nsqadmin_open_pages(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("addresses", "c")
    page = open_page(cluster.admin, "/lookup", base="")
    expect(page.get_by_text(cluster.lookupd.http_address)).to_be_visible()
    node = cluster.nsqds[0].http_address
    for path, heading in (
        ("/topics/addresses", "addresses"),
        ("/topics/addresses/c", "c"),
        (f"/nodes/{node}", node),
    ):
        page.goto(f"http://{cluster.admin.http_address}{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    page.goto(f"http://{cluster.admin.http_address}/counter")
    expect(page.locator(".counter")).to_have_text(re.compile(r"^[\d,]+$"))


def test_a_node_that_hangs_and_one_that_is_gone(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("hangs", "c")
    hanging, killed = cluster.nsqds[1:]
    page = open_page(cluster.admin, "/nodes", base="")
    expect(page.locator("#nodes tbody tr")).to_have_count(3)
    hanging.send_signal(signal.SIGSTOP)
    killed.kill()
    try:
        row = page.locator(f'tr[data-key="{hanging.http_address}"]')
        expect(row).to_contain_text("no answer")
        expect(row).to_have_class("old")
        expect(page.locator(f'tr[data-key="{killed.http_address}"]')).to_contain_text("gone")
        page.goto(f"http://{cluster.admin.http_address}/")
        expect(page.locator("#total-waiting")).to_contain_text("1 of 3 nodes answer")
        expect(page.locator(".findings")).to_contain_text(hanging.http_address)
    finally:
        hanging.send_signal(signal.SIGCONT)
        killed.start()
    page.goto(f"http://{cluster.admin.http_address}/nodes")
    # One that failed three times is asked again after half a minute.
    expect(page.locator("#nodes .health.good")).to_have_count(3, timeout=60_000)


def test_nsqadmin_that_goes_away_and_comes_back(cluster: Cluster, open_page: OpenPage) -> None:
    with cluster.make_admin("--log-prefix=[other] ") as admin:
        page = open_page(admin, "/nodes", base="", allowed_errors="ERR_CONNECTION_REFUSED")
        expect(page.locator("#nodes tbody tr")).to_have_count(3)
        admin.stop()
        expect(page.get_by_role("alert")).to_contain_text("No connection to the daemon")
        expect(page.locator("#nodes tbody tr")).to_have_count(3)
        admin.start()
        page.get_by_role("button", name="Ask now").click()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_viewer_sees_no_buttons_and_a_base_path_is_kept(
    cluster: Cluster, open_page: OpenPage
) -> None:
    cluster.create("viewed", "c")
    with cluster.make_admin("--admin-user=ada", "--base-path=/q", "--acl-http-header=X-U") as admin:
        page = open_page(admin, "/topics/viewed", base="/q", allowed_errors="ERR_CONNECTION")
        expect(page.locator(".who")).to_have_text("viewer")
        expect(page.get_by_role("link", name="c", exact=True)).to_be_visible()
        for name in ("Publish…", "Pause", "Empty…", "Delete…"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        page.get_by_role("link", name="Messages").click()
        expect(page.get_by_text("no right to read bodies")).to_be_visible()
        page.get_by_role("link", name="Nodes").first.click()
        expect(page).to_have_url(re.compile(r"/q/nodes$"))
        refused = fetch(
            ("127.0.0.1", admin.port), "POST", "/q/api/topics/viewed", b'{"action": "empty"}'
        )
        assert refused.status == 403


def test_tokens_ask_for_a_form_and_sign_out_ends_it(
    cluster: Cluster, open_page: OpenPage, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("cluster-secret\n")
    os.chmod(token, 0o600)
    with cluster.make_admin(f"--http-auth-token-file={token}", "--log-level=debug") as admin:
        page = open_page(admin, "/nodes", base="", allowed_errors="Failed to load resource")
        expect(page.locator("#state")).to_have_text("signed out")
        expect(page.locator("main")).to_contain_text("The figures are for those who have a token.")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator("#token-error")).to_contain_text("not the right one")
        page.get_by_label("Token").fill("cluster-secret")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator("#nodes tbody tr")).to_have_count(3)
        assert page.url.endswith("/nodes")
        assert "secret" not in page.content() + page.url + admin.log
        assert "secret" not in page.evaluate(
            "JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie"
        )
        page.context.clear_cookies()  # as if nsqadmin had forgotten the session
        page.get_by_label("Token").fill("cluster-secret")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        token.write_text("another-secret\n")
        expect(page.get_by_role("dialog", name="Sign in")).to_be_visible()
        page.get_by_label("Token").fill("cluster-secret")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator("#token-error")).to_contain_text("not the right one")
        page.get_by_label("Token").fill("another-secret")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator("#nodes tbody tr")).to_have_count(3)
        assert page.url.endswith("/nodes")
        page.get_by_role("link", name="Settings").first.click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
