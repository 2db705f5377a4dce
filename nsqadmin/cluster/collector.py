"""Collector: asks all nodes for their figures, round after round, and publishes a `View` of each.

A round asks nsqlookupd for the nodes and each nsqd for its /stats, waits for the answers with
patience that ends, merges them a slice at a time, and notes history and findings. A daemon that
does not answer in time is shown with its last figures; its answer counts whenever it comes. Viewers
read views: however many look, the nodes are asked once.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from nsqadmin.cluster.discovery import (
    DELTA_TARGET,
    STATS_TARGET,
    Discovery,
    LookupdState,
    Producer,
    merge_nodes,
    read_extensions,
)
from nsqadmin.cluster.figures import BadStatsError, Key, KeyTable, Sample, read_delta, read_sample
from nsqadmin.cluster.findings import Findings
from nsqadmin.cluster.history import History, shrink
from nsqadmin.cluster.merge import Merged, Merger, Totals, get
from nsqadmin.cluster.upstream import Address, Upstream, UpstreamError
from nsqadmin.cluster.view import REMEMBERED_ROUNDS, Node, NodeStatus, View
from nsqd.runtime.event_loop import end_task, start_task
from nsqd.runtime.slices import gather_slices

logger = logging.getLogger(__name__)

# How long a round waits for nodes; slower ones are in the next. While answers keep coming, which a
# busy machine takes its time to read, it goes on.
PATIENCE_S: Final = 1.5
SILENCE_S: Final = 0.5
MAX_PATIENCE_S: Final = 10.0
# For a node that failed the last time, and for an nsqlookupd once the nodes are known.
SHORT_PATIENCE_S: Final = 0.5
# Nodes are asked less often while no viewer is there, and after failures.
IDLE_AFTER_S: Final = 600.0
IDLE_INTERVAL_S: Final = 30.0
FAILURES_BEFORE_PAUSE: Final = 3
FAILED_INTERVAL_S: Final = 30.0
GONE_AFTER_S: Final = 600.0
# Collecting takes a quarter of a processor at most.
_LOAD_FACTOR: Final = 4.0
_FOLD_EVERY_ROUNDS: Final = 60
CLUSTER: Final = ""

CHANNEL_SERIES: Final = (
    *("depth", "in_flight", "deferred", "in", "out", "requeue", "timeout", "clients"),
    "latency_ns",
)
TOPIC_SERIES: Final = ("depth", "waiting", "in", "out", "bytes")
NODE_SERIES: Final = ("waiting", "in_flight", "deferred", "in", "out", "clients")


@dataclass(slots=True)
class Histories:
    """The tracks of channels, topics, nodes and the cluster."""

    channels: History[Key]
    topics: History[Key]
    nodes: History[Key]  # the cluster's is that of the node ""

    @classmethod
    def make(cls) -> "Histories":
        """Make empty ones."""
        return cls(History(CHANNEL_SERIES), History(TOPIC_SERIES), History(NODE_SERIES))

    def all(self) -> tuple[History[Key], ...]:
        """Return all three."""
        return self.channels, self.topics, self.nodes


class Collector:
    """The owner of the view of the cluster. `start` once, `close` once."""

    def __init__(
        self,
        upstream: Upstream,
        discovery: Discovery,
        *,
        poll_interval_s: float,
        history_max_bytes: int,
    ) -> None:
        self._upstream = upstream
        self.discovery = discovery
        self._poll_interval_s = poll_interval_s
        self._history_max_bytes = history_max_bytes
        self.histories = Histories.make()
        self._keys = KeyTable()
        self._findings = Findings()
        self._nodes: dict[str, Node] = {}
        # The names of nsqds that are called by their configured address.
        self._by_address: dict[Address, str] = {}
        self._lookupds: list[LookupdState] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._discovering: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = asyncio.Event()
        self._looked_at = time.monotonic()
        # Seconds of the processor that the last round took, about.
        self._busy_s = 0.0
        self._cpu_began_s = 0.0
        self._round_count = 0
        self._interval_s = poll_interval_s
        now_ms = time.time_ns() // 1_000_000
        self.started_ms = now_ms
        self.view = View(seq=now_ms, time_ms=now_ms, at=time.monotonic(), first_seq=now_ms)

    def start(self) -> None:
        """Begin with the first round."""
        self._task = start_task(self._run(), "collector")

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            await end_task(self._task)
        for task in (*self._asking, self._discovering):
            if task is not None:
                await end_task(task)

    def note_viewer(self) -> None:
        """Note a viewer: rounds are as frequent as they may be."""
        now = time.monotonic()
        is_back = now - self._looked_at > IDLE_AFTER_S
        self._looked_at = now
        if is_back:
            self.hurry()

    def hurry(self) -> None:
        """Begin the next round now, as something was changed."""
        self._is_wanted.set()

    def find_node(self, name: str) -> Node | None:
        """Return a node that discovery knows."""
        return self._nodes.get(name)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._is_wanted.clear()
            await self.run_round()
            self._interval_s = self._choose_interval(time.monotonic())
            pause_s = max(began + self._interval_s - time.monotonic(), 0.05)
            try:
                async with asyncio.timeout(pause_s):
                    await self._is_wanted.wait()
            except TimeoutError:
                continue

    def _choose_interval(self, now: float) -> float:
        wanted_s = self._poll_interval_s
        if now - self._looked_at > IDLE_AFTER_S:
            wanted_s = max(wanted_s, IDLE_INTERVAL_S)
        return max(wanted_s, _LOAD_FACTOR * self._busy_s)

    async def run_round(self) -> None:
        """Ask every daemon once and publish the view of their answers."""
        began = time.monotonic()
        self._cpu_began_s = time.thread_time()
        await self._discover()
        now = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        trusted: set[asyncio.Task[None]] = set()
        for node in self._nodes.values():
            if not node.is_being_asked and node.due_at <= now and node.gone_at is None:
                task = self._ask(node)
                tasks.add(task)
                if node.failure_count == 0:
                    trusted.add(task)
        await _wait_for_answers(tasks, trusted)
        self._note_silence()
        await self._publish(began)

    # Discovery.

    async def _discover(self) -> None:
        if not self.discovery.has_lookupds:
            self._list_nsqds()
            return
        if self._discovering is None or self._discovering.done():
            self._discovering = start_task(self._ask_lookupds(), "ask nsqlookupds")
        # One that hangs must not hold up the figures of the nodes that are known.
        await asyncio.wait([self._discovering], timeout=SHORT_PATIENCE_S if self._nodes else None)

    async def _ask_lookupds(self) -> None:
        self._lookupds = states = await self.discovery.ask_lookupds()
        if any(state.error is None for state in states):
            found = {producer.name: producer for producer in merge_nodes(states)}
            # While an nsqlookupd is silent, nodes that only it knew are kept.
            self._note_producers(found, is_all=all(state.error is None for state in states))

    def _list_nsqds(self) -> None:
        for address in self.discovery.nsqds:
            name = self._by_address.setdefault(address, str(address))
            if name not in self._nodes:
                producer = Producer(address, address.host, address.port, 0)
                self._nodes[name] = Node(name, producer)
        self._drop_unlisted(set(self.discovery.nsqds))

    def _note_producers(self, found: dict[str, Producer], *, is_all: bool) -> None:
        now = time.monotonic()
        for name, producer in found.items():
            node = self._nodes.setdefault(name, Node(name, producer))
            node.producer = producer
            if node.gone_at is not None:
                node.gone_at, node.due_at = None, 0.0
        for name, node in list(self._nodes.items()):
            if name not in found and node.gone_at is None and is_all:
                node.gone_at = now
                node.status = NodeStatus.GONE
            if node.gone_at is not None and now - node.gone_at > GONE_AFTER_S:
                del self._nodes[name]

    def _drop_unlisted(self, addresses: set[Address]) -> None:
        """Forget the nsqds that /config has taken from the list."""
        for address, name in list(self._by_address.items()):
            if address not in addresses:
                del self._by_address[address]
                self._nodes.pop(name, None)

    # Asking nodes.

    def _ask(self, node: Node) -> asyncio.Task[None]:
        node.is_being_asked = True
        node.asked_at = time.monotonic()
        task = start_task(self._ask_node(node), f"ask {node.name}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _ask_node(self, node: Node) -> None:
        try:
            sample = await _read_stats(self._upstream, node, self._keys)
            if node.extensions_start_s != sample.start_time_s:
                await self._identify(node, sample.start_time_s)
        except (UpstreamError, BadStatsError) as error:
            self._note_failure(node, str(error))
        else:
            now = sample.time
            node.earlier = node.sample if node.failure_count == 0 else None
            node.sample = sample
            node.answered_at = now
            node.due_at = 0.0
            node.error = None
            node.failure_count = 0
            if node.gone_at is None:
                node.status = NodeStatus.UP
        finally:
            node.is_being_asked = False

    async def _identify(self, node: Node, start_time_s: int) -> None:
        """Ask a node that was started since for its identity and extensions."""
        address = node.producer.address
        if self.discovery.has_lookupds:
            info = await self._upstream.get(address, "/info", is_node=True)
            node.extensions = read_extensions(info)
        else:
            producer = await self.discovery.ask_nsqd(address)
            self._rename(node, producer)
            node.extensions = producer.extensions
        node.extensions_start_s = start_time_s

    def _rename(self, node: Node, producer: Producer) -> None:
        """Give a node the name that it has for itself; two of one name keep their addresses."""
        address = node.producer.address
        node.producer = producer
        name = producer.name
        if name != node.name and name not in self._nodes and address in self._by_address:
            del self._nodes[node.name]
            node.name = name
            self._nodes[name] = node
            self._by_address[address] = name

    def _note_failure(self, node: Node, text: str) -> None:
        node.failure_count += 1
        node.error = text
        node.earlier = None
        if node.gone_at is None:
            node.status = NodeStatus.STALE
        if node.failure_count >= FAILURES_BEFORE_PAUSE:
            node.due_at = time.monotonic() + FAILED_INTERVAL_S

    def _note_silence(self) -> None:
        """Show the nodes that have not answered by now as such."""
        now = time.monotonic()
        for node in self._nodes.values():
            if node.is_being_asked and node.gone_at is None:
                node.status = NodeStatus.STALE
                node.error = f"no answer for {now - node.asked_at:.0f} s"

    # Publishing.

    async def _publish(self, began: float) -> None:
        merger, merged = Merger(), Merged()
        await gather_slices(self._merge_nodes(merger))
        await gather_slices(merger.finish_into(merged))
        now, wall_s = time.monotonic(), time.time()
        await gather_slices(self._note_history(merged, wall_s))
        # The processor's time, with the little that viewers ask for meanwhile: a busy machine must
        # not make rounds rarer.
        self._busy_s = time.thread_time() - self._cpu_began_s
        last = self.view
        known = {topic for state in self._lookupds for topic in state.topics}
        view = View(
            seq=last.seq + 1,
            time_ms=round(wall_s * 1000),
            at=now,
            merged=merged,
            nodes=dict(self._nodes),
            lookupds=self._lookupds,
            known_topics=frozenset(known),
            took_ms=round((now - began) * 1000),
            interval_ms=round(self._choose_interval(now) * 1000),
            is_stretched=_LOAD_FACTOR * self._busy_s > self._poll_interval_s,
            first_seq=max(last.first_seq, last.seq + 1 - REMEMBERED_ROUNDS),
            has_round=True,
        )
        self._note_changes(last, view)
        self._findings.update(view, lookupd_count=len(self.discovery.lookupds))
        self._tidy(view, wall_s)
        self.view = view

    def _merge_nodes(self, merger: Merger) -> Iterator[None]:
        for node in list(self._nodes.values()):
            if node.sample is not None and node.is_counted:
                is_stale = node.status is not NodeStatus.UP
                node.totals = merger.add(node.sample, node.earlier, is_stale=is_stale)
                yield

    def _note_history(self, merged: Merged, wall_s: float) -> Iterator[None]:
        topics, channels = self.histories.topics, self.histories.channels
        for key, row in merged.rows.items():
            if key[1]:
                channels.add(key, wall_s, _channel_values(row))
            else:
                topics.add(key, wall_s, _topic_values(row, merged.bytes_rates[key[0]]))
            yield
        nodes = self.histories.nodes
        for name, node in list(self._nodes.items()):
            if node.status is NodeStatus.UP:
                nodes.add((name, ""), wall_s, _node_values(node.totals))
                yield
        nodes.add((CLUSTER, ""), wall_s, _node_values(merged.totals))

    def _note_changes(self, last: View, view: View) -> None:
        rows, old_rows = view.merged.rows, last.merged.rows
        seq = view.seq
        changed, old_changed = view.changed, last.changed
        for key, row in rows.items():
            is_same = old_rows.get(key) == row
            changed[key] = old_changed[key] if is_same else seq
        view.removed = {
            key: at for key, at in last.removed.items() if at >= view.first_seq and key not in rows
        }
        view.removed |= {key: seq for key in old_rows if key not in rows}

    def _tidy(self, view: View, wall_s: float) -> None:
        self._round_count += 1
        rows = view.merged.rows
        if self._round_count % _FOLD_EVERY_ROUNDS == 0:
            self._keys.keep_only(rows)
            for history in self.histories.all():
                history.fold()
            before_s = wall_s - GONE_AFTER_S
            self.histories.channels.keep_only(rows, before_s)
            self.histories.topics.keep_only(rows, before_s)
            names = {(name, ""): None for name in (*self._nodes, CLUSTER)}
            self.histories.nodes.keep_only(names, before_s)
        dropped = shrink(self.histories.all(), self._history_max_bytes)
        if dropped:
            logger.debug("history: dropped the idlest count=%d", dropped)


async def _read_stats(upstream: Upstream, node: Node, keys: KeyTable) -> Sample:
    """Ask a node for its figures, or for those that have changed if it tells them.

    Raises:
        UpstreamError, BadStatsError: it gave none.
    """

    async def get(target: str) -> object:
        is_doubtful = node.failure_count > 0
        address = node.producer.address
        return await upstream.get(address, target, is_node=True, is_doubtful=is_doubtful)

    # The documents have no names here: they are large, and are let go before the next question.
    if "stats_delta" not in (node.extensions or ()):
        return read_sample(await get(STATS_TARGET), time.monotonic(), keys, node.sample)
    if node.sample is not None and node.sample.seq is not None:
        target = f"{DELTA_TARGET}&since={node.sample.seq}"
        sample = read_delta(await get(target), time.monotonic(), keys, node.sample)
        if sample is not None:
            return sample
    sample = read_delta(await get(DELTA_TARGET), time.monotonic(), keys, node.sample)
    if sample is None:
        raise BadStatsError("/stats has changes only, and was asked for all")
    return sample


async def _wait_for_answers(
    tasks: set[asyncio.Task[None]], trusted: set[asyncio.Task[None]]
) -> None:
    """Wait for the nodes, not long for those that failed the last time."""
    began = time.monotonic()
    pending = tasks
    while pending:
        count = len(pending)
        _, pending = await asyncio.wait(pending, timeout=SILENCE_S)
        pending = pending & trusted
        waited_s = time.monotonic() - began
        if waited_s >= MAX_PATIENCE_S or (waited_s >= PATIENCE_S and len(pending) == count):
            return


def _channel_values(row: tuple[object, ...]) -> tuple[float | None, ...]:
    return tuple(
        get(row, name)
        for name in (
            *("depth", "in_flight", "deferred", "in_rate", "out_rate", "requeue_rate"),
            *("timeout_rate", "clients", "latency_ns"),
        )
    )


def _topic_values(row: tuple[object, ...], bytes_rate: float | None) -> tuple[float | None, ...]:
    names: Iterable[str] = ("depth", "waiting", "in_rate", "out_rate")
    return (*(get(row, name) for name in names), bytes_rate)


def _node_values(totals: Totals) -> tuple[float | None, ...]:
    return (
        *(totals.waiting, totals.in_flight, totals.deferred),
        *(totals.in_rate, totals.out_rate, totals.clients),
    )
