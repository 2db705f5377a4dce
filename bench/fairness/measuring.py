"""One row on one daemon: the pinger begins, the load comes and goes, the pinger ends."""

import contextlib
import multiprocessing
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.daemon_process import Daemon, DaemonError, Setting, Target, running
from bench.fairness.pinger import PingPlan, ping
from bench.fairness.row import TOPIC, Row, Site
from bench.fairness.slow_disk import slow_disk
from bench.worker_process import WorkerGroup

PING_TOPIC: Final = "quiet"
# The pinger runs alone this long before the load starts, and goes on this long after it.
LEAD_S: Final = 0.1
TAIL_S: Final = 0.5
# Filling a queue with millions of messages takes a while; so does a load that is not ended by time.
PREPARE_TIMEOUT_S: Final = 180.0
LOAD_TIMEOUT_S: Final = 120.0


class SkippedError(Exception):
    """This row cannot be measured on this daemon; the text says why."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much: the seconds a flood lasts, and whether sizes are the quick ones.

    Attributes:
        is_delivered: a ping ends with the delivery of its message, not with its OK.
    """

    seconds: float
    is_quick: bool
    is_delivered: bool = False

    def size(self, row: Row) -> int:
        return row.quick_size if self.is_quick else row.size


@dataclass(frozen=True, slots=True)
class Delays:
    """The delay of each ping beside the load, and how much the load did."""

    delays_ns: "array[int]"
    load_count: int
    load_s: float


def measure(row: Row, target: Target, scale: Scale) -> Delays:
    """Ping beside the row's load, on a fresh daemon.

    Raises:
        DaemonError: the daemon does not start.
        LoadError: it refuses the pinger or the load.
        SkippedError: the row needs another daemon.
    """
    if not target.is_startable and (row.flags or row.seed or row.has_slow_disk):
        raise SkippedError("it needs a daemon that is started for it")
    if not row.has_slow_disk:
        return _measure_on(row, target, scale, {})
    with slow_disk() as disk:
        delays = _measure_on(row, target, scale, disk.environment)
        if not disk.has_delayed():
            raise SkippedError("its writes do not go through the C library")
        return delays


def _measure_on(row: Row, target: Target, scale: Scale, environment: Mapping[str, str]) -> Delays:
    setting = Setting(environment, row.seed and row.seed(scale.size(row)))
    with running(target, row.flags, setting) as daemon, _cleaned(target, daemon):
        site = Site(daemon, scale.seconds, scale.size(row))
        return _measure(row, site, is_delivered=scale.is_delivered)


def _measure(row: Row, site: Site, *, is_delivered: bool) -> Delays:
    stop = multiprocessing.get_context("fork").Event()
    most_s = LEAD_S + LOAD_TIMEOUT_S + TAIL_S
    plan = PingPlan(site.daemon.tcp, PING_TOPIC, most_s, stop, is_delivered)
    jobs = [partial(load, site) for load in (row.load, row.beside) if load is not None]
    # The load prepares before the pinger is there, which then has only the load to wait for.
    with WorkerGroup(jobs) as loads:
        loads.wait_ready(PREPARE_TIMEOUT_S)
        with WorkerGroup([partial(ping, plan)]) as pinger:
            pinger.wait_ready()
            pinger.go()
            time.sleep(LEAD_S)
            loads.go()
            done = loads.results(LOAD_TIMEOUT_S)[0]
            time.sleep(TAIL_S)
            stop.set()
            pings = pinger.results(LOAD_TIMEOUT_S)[0]
    return Delays(pings.delays_ns, done.messages, (done.ended_ns - done.started_ns) / 1e9)


@contextlib.contextmanager
def _cleaned(target: Target, daemon: Daemon) -> Iterator[None]:
    """Delete the topics afterwards, if the daemon lives on."""
    try:
        yield
    finally:
        if not target.is_startable:
            for topic in (PING_TOPIC, TOPIC):
                # A row may have deleted its topic itself.
                with contextlib.suppress(DaemonError):
                    daemon.request("POST", "/topic/delete", topic=topic)
