"""The page of nsqd: who is sent there, how its files are served. tests/console opens it."""

import gzip
import re
from collections.abc import AsyncIterator

import pytest

from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon, StartNsqd

CHROME_ACCEPT = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as client:
        yield client


async def test_browsers_are_sent_to_the_page_and_scripts_hear_404(http: HttpClient) -> None:
    browser = await http.request("GET", "/", headers={"Accept": CHROME_ACCEPT})
    script = await http.request("GET", "/", headers={"Accept": "*/*"})
    bare = await http.get("/")

    assert (browser.status, browser.headers["location"]) == (302, "/console/")
    assert (script.status, script.json()) == (404, {"message": "NOT_FOUND"})
    assert (bare.status, bare.json()) == (404, {"message": "NOT_FOUND"})


@pytest.mark.parametrize(
    "path",
    [
        "/console/",
        "/console/topics",
        "/console/topics/x%23ephemeral",
        "/console/topics/orders/mail/messages",
        "/console/nodes/127.0.0.1:4151",
        "/console/dead-letters",
        "/console/settings",
    ],
)
async def test_every_address_of_the_page_is_the_same_html(http: HttpClient, path: str) -> None:
    reply = await http.get(path)

    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; script-src")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert '<meta name="nsq-mode" content="node">' in reply.text


async def test_files_are_kept_for_ever_and_zipped(http: HttpClient) -> None:
    page = (await http.get("/console/")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    for address in addresses:
        reply = await http.request("GET", address, headers={"Accept-Encoding": "gzip"})

        assert reply.status == 200, address
        assert "immutable" in reply.headers["cache-control"]
        assert gzip.decompress(reply.body) == (await http.get(address)).body

    other = {"If-None-Match": (await http.get(addresses[1])).headers["etag"]}
    assert (await http.request("GET", addresses[0], headers=other)).status == 200
    own = (await http.get(addresses[0])).headers["etag"]
    same = await http.request("GET", addresses[0], headers={"If-None-Match": own})
    assert (same.status, same.body) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "../../pyproject.toml",
        "%2e%2e%2f%2e%2e%2fpyproject.toml",
        "..%5c..%5cpyproject.toml",
        "main.js%00",
        "/etc/passwd",
        "vendor/README.md",
    ],
)
async def test_no_path_leads_out_of_the_table(http: HttpClient, name: str) -> None:
    page = (await http.get("/console/")).text
    [root] = re.findall(r'name="nsq-root" content="([^"]+)"', page)

    assert (await http.get(f"{root}/{name}")).status in (301, 404)


async def test_the_page_can_be_turned_off(start_nsqd: StartNsqd) -> None:
    nsqd = await start_nsqd(console=False)
    async with await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port)) as http:
        for path in ("/", "/console/", "/console/topics"):
            reply = await http.request("GET", path, headers={"Accept": CHROME_ACCEPT})

            assert (reply.status, reply.json()) == (404, {"message": "NOT_FOUND"})


async def test_unknown_pages_are_404(http: HttpClient) -> None:
    assert (await http.get("/console/secrets")).status == 404
    assert (await http.get("/console/static/0000000000000000/main.js")).status == 404
