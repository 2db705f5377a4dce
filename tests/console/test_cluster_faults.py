"""The page of nsqadmin while parts of the cluster fail, differ, or are of another kind."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.cluster import Admin, Cluster
from tests.console.conftest import OpenPage
from tests.console.consumer import Consumer
from tests.support.daemon_process import (
    HOST,
    LOOKUPD,
    DaemonProcess,
    WaitingDaemon,
    find_go_program,
)
from tests.support.fake_farm import FarmProcess, farm_process
from tests.support.http_client import fetch

ROLES = ("X-User", {"vera": "viewer", "rita": "reader", "otto": "operator", "ada": "admin"})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("faults"), nsqd_count=2) as cluster:
        yield cluster


def test_nsqlookupds_that_are_down_are_named_and_the_figures_go_on(
    tmp_path: Path, open_page: OpenPage
) -> None:
    lookupds = [
        WaitingDaemon(tmp_path / f"lookupd-{number}", command=LOOKUPD, keeps_ports=True)
        for number in range(2)
    ]
    with lookupds[0], lookupds[1]:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
        addresses = [f"--lookupd-http-address={lookupd.http_address}" for lookupd in lookupds]
        with (
            DaemonProcess(tmp_path / "nsqd", *flags) as nsqd,
            Admin(tmp_path / "admin", *addresses, "--poll-interval=1s") as admin,
        ):
            nsqd.publish("lasting", b"1")
            page = open_page(admin, "/", base="")
            row = page.locator('tr[data-key="lasting"] td')
            expect(row.nth(2)).to_have_text("1")
            expect(page.locator(".findings")).not_to_contain_text("does not answer")

            lookupds[1].kill()
            expect(page.locator(".findings")).to_contain_text(
                f"nsqlookupd {lookupds[1].http_address} does not answer"
            )
            nsqd.publish("lasting", b"2")
            expect(row.nth(2)).to_have_text("2")
            lookupds[0].kill()
            expect(page.locator(".findings")).to_contain_text("No nsqlookupd answers")
            nsqd.publish("lasting", b"3")
            expect(row.nth(2)).to_have_text("3")
            for lookupd in lookupds:
                lookupd.start()
            expect(page.locator(".findings")).not_to_contain_text("nsqlookupd answers")
            expect(row.nth(2)).to_have_text("3")


def test_a_broadcast_address_that_does_not_resolve_has_a_hint(
    cluster: Cluster, tmp_path: Path, open_page: OpenPage
) -> None:
    flags = (
        f"--lookupd-tcp-address={cluster.lookupd.tcp_address}",
        "--broadcast-address=no-such-host.invalid",
    )
    with DaemonProcess(tmp_path, *flags) as nsqd:
        page = open_page(cluster.admin, "/", base="")
        name = f"no-such-host.invalid:{nsqd.http_port}"
        finding = page.locator(".findings li").filter(has_text=name)
        expect(finding).to_contain_text("no such host")
        expect(finding).to_contain_text("--broadcast-address")
        page.goto(f"http://{cluster.admin.http_address}/nodes")
        expect(page.locator(f'tr[data-key="{name}"]')).to_contain_text("no such host")
    expect(page.locator(f'tr[data-key="{name}"]')).to_contain_text("gone")


def test_a_tombstone_counts_down_and_the_action_hides_the_node(
    cluster: Cluster, open_page: OpenPage
) -> None:
    cluster.create("hidden", "c")
    node, other = cluster.nsqds
    # What other tools set: the topic stays on the node, and is hidden for 45 s.
    target = f"/topic/tombstone?topic=hidden&node={other.http_address}"
    assert cluster.lookupd.fetch("POST", target).status == 200
    page = open_page(cluster.admin, "/topics/hidden?tab=nodes", base="")
    hidden = page.locator(f'tr[data-key="{other.http_address}"]')
    expect(hidden).to_contain_text(re.compile(r"hidden from discovery, \d+ s left"))

    # Ours deletes the topic there as well, as the Go nsqadmin does.
    row = page.locator(f'tr[data-key="{node.http_address}"]')
    node.publish("hidden", b"1", b"2", b"3")
    row.get_by_role("button", name="Tombstone…").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 messages of its queue and channels")
    expect(page.locator("#confirm")).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("hidden")
    page.locator("#confirm").click()
    expect(page.get_by_text("hidden from discovery.", exact=False).last).to_be_visible()
    expect(row).to_have_count(0)
    found = cluster.lookupd.fetch("GET", "/lookup?topic=hidden").json()["producers"]
    assert found == []
    assert node.find_channel("hidden", "c") is None
    assert other.find_channel("hidden", "c") is not None


def test_roles_see_and_do_what_is_theirs(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("roles", "c")
    cluster.nsqds[0].publish("roles", b"a body")
    header, names = ROLES
    roles = [f"--acl-role={name}:{role}" for name, role in names.items() if role != "admin"]
    with cluster.make_admin(f"--acl-http-header={header}", "--admin-user=ada", *roles) as admin:
        admin.wait_for_topic("roles")
        for name, role in (*names.items(), ("", "viewer"), ("mallory", "viewer")):
            headers = {header: name} if name else {}
            page = open_page(
                *(admin, "/topics/roles/c"),
                base="",
                headers=headers,
                allowed_errors="ERR_CONNECTION",
            )
            expect(page.locator(".who")).to_contain_text(role)
            is_operator, is_admin = role in ("operator", "admin"), role == "admin"
            for button, is_there in (
                ("Pause", is_operator),
                ("Empty…", is_admin),
                ("Delete…", is_admin),
            ):
                buttons = page.get_by_role("button", name=button, exact=True)
                if is_there:
                    expect(buttons.first).to_be_visible()
                else:
                    expect(buttons).to_have_count(0)
            page.goto(f"http://{admin.http_address}/topics/roles/c/messages")
            if role == "viewer":
                expect(page.get_by_text("no right to read bodies")).to_be_visible()
            else:
                expect(page.locator(".preview")).to_contain_text("a body")
            if name:
                address = (HOST, admin.port)
                path = "/api/v2/messages?topic=roles&channel=c"
                reply = fetch(address, "GET", path, headers=headers)
                assert reply.status == (403 if role == "viewer" else 200)
                wanted = b'{"action":"delete","targets":[{"topic":"none"}],"confirm":"none"}'
                reply = fetch(address, "POST", "/api/v2/actions", wanted, headers=headers)
                assert reply.status == (202 if is_admin else 403)


@pytest.mark.skipif(find_go_program("nsqd") is None, reason="no Go nsqd on the PATH")
def test_a_go_nsqd_has_the_basics_and_the_rest_disabled_with_the_reason(
    tmp_path: Path, open_page: OpenPage
) -> None:
    program = find_go_program("nsqd")
    assert program is not None
    with WaitingDaemon(tmp_path / "lookupd", command=LOOKUPD, keeps_ports=True) as lookupd:
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with (
            DaemonProcess(
                tmp_path / "go", flag, f"--broadcast-address={HOST}", command=(program,)
            ) as nsqd,
            Admin(
                *(tmp_path / "admin", f"--lookupd-http-address={lookupd.http_address}"),
                "--poll-interval=1s",
            ) as admin,
        ):
            nsqd.request("POST", "/topic/create?topic=going")
            nsqd.request("POST", "/channel/create?topic=going&channel=c")
            admin.wait_for_topic("going", "c")
            page = open_page(admin, "/topics/going/c", base="")
            expect(page.get_by_role("heading", level=1)).to_have_text("c")
            page.get_by_role("button", name="Pause", exact=True).first.click()
            nsqd.wait_for_channel("going", "c", paused=True)
            page.get_by_role("button", name="Undo").click()
            nsqd.wait_for_channel("going", "c", paused=False)
            nsqd.publish("going", *[b"x"] * 50)
            with Consumer(nsqd.address, "going", "c"):
                nsqd.wait_for_channel("going", "c", depth=0)
            expect(page.locator("main")).to_contain_text("~")
            page.goto(f"http://{admin.http_address}/topics/going/c/messages")
            expect(page.locator("main")).to_contain_text("No node here lets one look at messages")
            page.goto(f"http://{admin.http_address}/topics/going?tab=limits")
            expect(page.locator("main")).to_contain_text("Go's nsqd")
            page.goto(f"http://{admin.http_address}/nodes/{nsqd.http_address}")
            drain = page.get_by_role("button", name="Drain…")
            expect(drain).to_be_disabled()
            expect(drain).to_have_attribute("title", re.compile("it is not ours, or older"))


@pytest.fixture
def farm() -> Iterator[FarmProcess]:
    """500 nodes with 80 of 2,000 topics."""
    with farm_process(busy=0.05) as farm:
        yield farm


def test_five_hundred_nodes_and_two_thousand_topics(
    farm: FarmProcess, tmp_path: Path, open_page: OpenPage
) -> None:
    flags = (f"--lookupd-http-address={HOST}:{farm.port}", "--http-client-request-timeout=2s")
    with Admin(tmp_path, *flags) as admin:
        page = open_page(admin, "/topics", base="")
        expect(page.locator("table[aria-rowcount]").first).to_have_attribute(
            "aria-rowcount", "2001", timeout=60_000
        )
        assert page.locator("tbody tr").count() <= 80
        # The rows in view have their lines, whatever the order.
        for order in ("-waiting", "topic", "-topic"):
            page.goto(f"http://{admin.http_address}/topics?sort={order}")
            expect(page.locator("tbody tr[data-key]").first.locator("svg.spark")).to_be_visible()
        page.goto(f"http://{admin.http_address}/topics")
        expect(page.locator("tbody tr[data-key]").first).to_be_visible()
        page.mouse.wheel(0, 40_000)
        expect(page.locator("tbody")).to_contain_text("topic_1")
        assert page.locator("tbody tr").count() <= 80

        farm.control(hang=50, stir=1)
        page.goto(f"http://{admin.http_address}/")
        expect(page.locator("#total-waiting")).to_contain_text(
            "450 of 500 nodes answer", timeout=60_000
        )
        page.goto(f"http://{admin.http_address}/nodes")
        expect(page.locator("#nodes tbody tr").first).to_be_visible()


def test_ten_tabs_of_one_browser_all_live(cluster: Cluster, open_page: OpenPage) -> None:
    cluster.create("tabs", "c")
    first = open_page(cluster.admin, "/topics?q=tabs", base="")
    tabs = [first]
    for _ in range(9):
        tab = first.context.new_page()
        tab.goto(first.url)
        tabs.append(tab)
    for tab in tabs:
        expect(tab.locator('tr[data-key="tabs"]')).to_be_visible()
    cluster.nsqds[0].publish("tabs", b"1", b"2", b"3")
    for tab in tabs:
        expect(tab.locator('tr[data-key="tabs"] td').nth(2)).to_have_text("3")
