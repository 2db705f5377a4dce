"""The bars of nsqadmin: a farm of 500 nodes with 80 of 2,000 topics, and what a viewer costs."""

import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.console.bars import process_figures
from tests.console.bars.row import Row, spread
from tests.console.cluster import Admin
from tests.support.daemon_process import HOST
from tests.support.fake_farm import FarmProcess, farm_process
from tests.support.http_client import fetch
from tests.support.waiting import wait_until

MB = 1 << 20
NODES = 500
ROUNDS = 4
HANGING = 50
VIEWERS = 10
VIEWING_S = 15.0
# As often as the page asks.
VIEW_EVERY_S = 5.0
_SPARKED = ",".join(f"topic_{number:04}" for number in range(40))
LISTS = ("overview?", "queues?", "history?range=10m&", f"sparklines?topics={_SPARKED}&")
DETAILS = ("overview?", "queues?", "clients?topic=topic_0000&channel=channel_0&")


def measure_fleet() -> Iterator[Row]:
    """Measure nsqadmin before the farm."""
    with farm_process(busy=0.05) as farm, tempfile.TemporaryDirectory() as directory:
        admin = Admin(Path(directory), f"--lookupd-http-address={HOST}:{farm.port}")
        began = time.monotonic()
        with admin:
            yield _start(admin, began)
            wait_until(lambda: _overview(admin)["totals"]["topics"] == 2000)
            yield from _rounds(farm, admin, "500 nodes x 80 of 2,000 topics")
            yield from _viewers(farm, admin)
            farm.control(hang=HANGING)
            wait_until(lambda: _overview(admin)["nodes"]["stale"] == HANGING)
            yield from _rounds(farm, admin, f"the same, {HANGING} of the nodes hang")


def _get(admin: Admin, path: str) -> Any:
    return fetch((HOST, admin.port), "GET", path).json()


def _overview(admin: Admin) -> dict[str, Any]:
    overview: dict[str, Any] = _get(admin, "/api/v2/overview")
    return overview


def _start(admin: Admin, began: float) -> Row:
    page = fetch((HOST, admin.port), "GET", "/")
    took_s = time.monotonic() - began
    has_round = _overview(admin)["round"]["age_ms"] is not None
    assert page.status == 200
    return Row(
        "start to first page",
        "<= 1 s, before the first round ends",
        f"{took_s:.2f} s, {'after' if has_round else 'before'} it",
        took_s <= 1 and not has_round,
    )


def _wait_for_round(admin: Admin) -> dict[str, Any]:
    """Wait for the next round to end; looking costs nsqadmin little."""
    seq = _overview(admin)["seq"]
    while (overview := _overview(admin))["seq"] == seq:
        time.sleep(0.2)
    return overview


def _rounds(farm: FarmProcess, admin: Admin, name: str) -> Iterator[Row]:
    _wait_for_round(admin)
    took_s, cpus_s = [], []
    for _ in range(ROUNDS):
        farm.control(stir=1)
        before_s = process_figures.cpu_s(admin.pid)
        took_s.append(_wait_for_round(admin)["round"]["took_ms"] / 1000)
        cpus_s.append(process_figures.cpu_s(admin.pid) - before_s)
    yield Row(
        f"nsqadmin, {name}: a round",
        "<= 3 s",
        spread(took_s, "s", 2),
        statistics.median(took_s) <= 3,
    )
    yield Row(
        "the same: its processor",
        "<= 1.2 s",
        spread(cpus_s, "s", 2),
        statistics.median(cpus_s) <= 1.2,
    )
    rss_mb = process_figures.rss_bytes(admin.pid) / MB
    peak_mb = process_figures.peak_rss_bytes(admin.pid) / MB
    yield Row("the same: RSS", "<= 250 MB", f"{rss_mb:.0f} MB, peak {peak_mb:.0f}", rss_mb <= 250)


def _viewers(farm: FarmProcess, admin: Admin) -> Iterator[Row]:
    alone = _watch(farm, admin)
    with viewing((HOST, admin.port), VIEWERS, LISTS):
        lists = _watch(farm, admin)
    with viewing((HOST, admin.port), VIEWERS, DETAILS):
        details = _watch(farm, admin)
    extra_nodes = lists.per_round("requests") - alone.per_round("requests")
    extra_lookups = lists.per_round("lookups") - alone.per_round("lookups")
    yield Row(
        f"{VIEWERS} viewers of lists: more requests",
        "0",
        f"{extra_nodes:+.0f} to nsqd, {extra_lookups:+.0f} to nsqlookupd a round",
        extra_nodes == 0 and extra_lookups == 0,
    )
    share = (lists.cpu_share - alone.cpu_share) / VIEWERS
    yield Row(
        "an additional viewer: nsqadmin's processor",
        "<= 0.5 % of a core",
        f"{share:.2%} ({alone.cpu_share:.1%} alone, {lists.cpu_share:.1%} with {VIEWERS})",
        share <= 0.005,
    )
    # Twenty nodes have the topic that they look at.
    asked = (details.count("requests") - alone.per_round("requests") * details.rounds) / 20
    rate = max(asked / details.seconds, 0)
    yield Row(
        f"{VIEWERS} viewers of one channel's clients: questions",
        "<= 1 a second and node",
        f"{rate:.2f}",
        rate <= 1,
    )


class _Watched:
    """What happened meanwhile at the nodes and in nsqadmin."""

    def __init__(self, before: dict[str, float], after: dict[str, float]) -> None:
        self._counts = {name: after[name] - before[name] for name in before}
        self.rounds = self._counts["rounds"]
        self.seconds = self._counts["seconds"]
        self.cpu_share = self._counts["cpu_s"] / self.seconds

    def count(self, name: str) -> float:
        return self._counts[name]

    def per_round(self, name: str) -> float:
        """Return how many came in one round."""
        return self._counts[name] / self.rounds


def _watch(farm: FarmProcess, admin: Admin) -> _Watched:
    before = _look(farm, admin)
    deadline = time.monotonic() + VIEWING_S
    while time.monotonic() < deadline:
        farm.control(stir=1)
        _wait_for_round(admin)
    return _Watched(before, _look(farm, admin))


def _look(farm: FarmProcess, admin: Admin) -> dict[str, float]:
    """Read all counts, between two rounds."""
    seq = _wait_for_round(admin)["seq"]
    return {
        **farm.control(),
        "cpu_s": process_figures.cpu_s(admin.pid),
        "rounds": seq,
        "seconds": time.monotonic(),
    }


@contextmanager
def viewing(address: tuple[str, int], count: int, paths: Sequence[str]) -> Iterator[None]:
    """Have as many viewers poll as pages do, spread over the interval."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_view, args=(address, paths, stop, VIEW_EVERY_S * number / count))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _view(
    address: tuple[str, int], paths: Sequence[str], stop: threading.Event, delay_s: float
) -> None:
    since = ""
    with closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
        while not stop.wait(delay_s):
            delay_s = VIEW_EVERY_S
            for path in paths:
                target = f"/api/v2/{path}since={since}"
                connection.request("GET", target, headers={"Accept-Encoding": "gzip"})
                reply = connection.getresponse()
                body = reply.read()
                if path == "overview?" and reply.status == 200:
                    since = str(json.loads(body)["seq"])
