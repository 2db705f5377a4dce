"""The bars of nsqd: viewers and a collector while it is published to, and the page that is closed.

The load is measured in turns, without viewers and with them, each time in the other order: what
the machine does besides meets both alike. nsqd has a core for itself, and the collector gives way
to the load on the other: what counts is their cost to the node, as they run elsewhere in earnest.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser

from bench import wire
from bench.publishers import PublishPlan, publish_synchronously
from bench.worker_process import WorkerGroup
from console.assets import load_assets
from tests.console.bars import process_figures
from tests.console.bars.browser import MeasuredPage
from tests.console.bars.fleet import LISTS, VIEWERS, viewing
from tests.console.bars.row import Row, spread
from tests.console.cluster import Admin
from tests.support.daemon_process import HOST, DaemonProcess

TURNS = 8
PUBLISHERS = 4
# Longer than the five seconds between two rounds, so that each turn has a round.
TURN_S = 6.0
TOPICS = 100
BODY = b"x" * 200
UNBOUND = 1 << 40
IDLE_S = 10.0
# As long as nsqd remembers what it has told, and some more.
FORGOTTEN_S = 65.0
KB = 1 << 10


class Turn(NamedTuple):
    """What came of one turn."""

    messages_per_s: float
    p99_ms: float


def measure_node(browser: Browser) -> Iterator[Row]:
    """Measure nsqd's part."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        looked_at = stack.enter_context(DaemonProcess(directory / "with"))
        other = stack.enter_context(DaemonProcess(directory / "without", "--console=false"))
        for nsqd in (looked_at, other):
            nsqd.request("POST", "/topic/create?topic=topic_0000")
        with MeasuredPage(browser, refresh_s=2) as measured:
            measured.open(f"http://{looked_at.http_address}/console/")
            measured.page.wait_for_timeout(5000)
        closed_at = time.monotonic()
        yield from _under_load(directory)
        time.sleep(max(0.0, closed_at + FORGOTTEN_S - time.monotonic()))
        yield from _closed(looked_at, other)


@contextmanager
def _watched(directory: Path, nsqd: DaemonProcess) -> Iterator[None]:
    """Run the collector and ten viewers of it."""
    with Admin(directory / "nsqadmin", f"--nsqd-http-address={nsqd.http_address}") as admin:
        os.setpriority(os.PRIO_PROCESS, admin.pid, 10)
        admin.wait_for_topic("topic_0000")
        with viewing((HOST, admin.port), VIEWERS, LISTS):
            yield


def _under_load(directory: Path) -> Iterator[Row]:
    plain: list[Turn] = []
    watched: list[Turn] = []
    with DaemonProcess(directory / "nsqd") as nsqd, _apart(nsqd):
        for number in range(TOPICS):
            nsqd.request("POST", f"/topic/create?topic=topic_{number:04}")
            nsqd.request("POST", f"/channel/create?topic=topic_{number:04}&channel=channel_0")
        _take_turn(nsqd, seconds=2.0)
        for number in range(TURNS):
            for is_watched in (False, True) if number % 2 else (True, False):
                with ExitStack() as stack:
                    if is_watched:
                        stack.enter_context(_watched(directory, nsqd))
                    (watched if is_watched else plain).append(_take_turn(nsqd, TURN_S))
        with _watched(directory, nsqd):
            cpu_s, began = process_figures.cpu_s(nsqd.pid), time.monotonic()
            time.sleep(IDLE_S)
            share = (process_figures.cpu_s(nsqd.pid) - cpu_s) / (time.monotonic() - began)
    yield _compare(
        f"throughput with {VIEWERS} viewers and the collector",
        [turn.messages_per_s / 1000 for turn in plain],
        [turn.messages_per_s / 1000 for turn in watched],
        "k/s",
        is_more_better=True,
    )
    yield _compare(
        "the same: p99 of a publish",
        [turn.p99_ms for turn in plain],
        [turn.p99_ms for turn in watched],
        "ms",
        is_more_better=False,
    )
    yield Row("the same without load: nsqd's processor", "", f"{share:.2%} of a core", None)


def _compare(
    bar: str, plain: list[float], watched: list[float], unit: str, *, is_more_better: bool
) -> Row:
    """Compare neighbours in time, as a machine's speed drifts; the middle one of them counts."""
    change = statistics.median(b / a - 1 for a, b in zip(plain, watched, strict=True))
    loss = -change if is_more_better else change
    return Row(
        bar,
        "within 5 % of none",
        f"{change:+.1%}: {spread(watched, unit, 2)}, without {spread(plain, unit, 2)}",
        loss <= 0.05,
    )


def _take_turn(nsqd: DaemonProcess, seconds: float) -> Turn:
    """Publish on some connections, each message after the OK of the one before.

    The topic keeps what fits in memory and drops the rest, so that no disk is measured.
    """
    unit = wire.pub_command("load#ephemeral", BODY)
    plan = PublishPlan(nsqd.address, unit, 1, 1, 1, UNBOUND, seconds)
    with WorkerGroup([partial(publish_synchronously, plan)] * PUBLISHERS) as group:
        group.wait_ready()
        group.go()
        results = group.results(seconds + 60)
    rate = sum(
        result.messages / ((result.ended_ns - result.started_ns) / 1e9) for result in results
    )
    return Turn(rate, statistics.median(result.latency_ms["p99"] for result in results))


@contextmanager
def _apart(nsqd: DaemonProcess) -> Iterator[None]:
    """Give nsqd one core and all else that is started here the others."""
    cores = os.sched_getaffinity(0)
    first, *others = sorted(cores)
    os.sched_setaffinity(nsqd.pid, {first})
    os.sched_setaffinity(0, others or {first})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _closed(nsqd: DaemonProcess, other: DaemonProcess) -> Iterator[Row]:
    """Look at an nsqd whose page was open, and at one that has none."""
    pids = nsqd.pid, other.pid
    before = [(process_figures.wake_count(pid), process_figures.cpu_s(pid)) for pid in pids]
    time.sleep(IDLE_S)
    after = [(process_figures.wake_count(pid), process_figures.cpu_s(pid)) for pid in pids]
    wakes = [late[0] - early[0] for early, late in zip(before, after, strict=True)]
    cpus_s = [late[1] - early[1] for early, late in zip(before, after, strict=True)]
    yield Row(
        f"node mode, page closed: nsqd woken in {IDLE_S:.0f} s",
        "as often as with --console=false",
        f"{wakes[0]} times ({cpus_s[0] * 1000:.1f} ms), without {wakes[1]}"
        f" ({cpus_s[1] * 1000:.1f} ms)",
        # What the machine does besides moves them by some; a timer of ours would add ten or more.
        wakes[0] < wakes[1] + IDLE_S,
    )
    assets = load_assets()
    held = [assets.find(assets.version, name) for name in assets.names]
    size = sum(len(each.zipped) for each in held if each is not None)
    yield Row("the same: files in memory", "<= 300 KB", f"{size / KB:.0f} KB", size <= 300 * KB)
