"""Discovery: which nodes and topics there are, asked from nsqlookupds, or from nsqds themselves.

Answers are of this moment; the collector keeps them. Some of the daemons may fail: an answer holds
what the others say, and the errors. Only nodes that discovery names are ever called.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from nsqadmin.cluster.upstream import Address, Upstream, UpstreamError, clean
from nsqd.protocol.names import is_valid_topic_name

MAX_NODES: Final = 10_000
STATS_TARGET: Final = "/stats?format=json&include_clients=false&include_mem=false"
DELTA_TARGET: Final = "/stats?format=delta&fresh=true"
_HOST: Final = re.compile(r"[\w.:%-]{1,255}", re.ASCII)

_T = TypeVar("_T")


@dataclass(slots=True)
class Producer:
    """One nsqd, as discovery describes it."""

    address: Address  # where it is called
    broadcast_address: str
    http_port: int
    tcp_port: int
    hostname: str = ""
    version: str = ""
    region: str = ""
    zone: str = ""
    remote_address: str = ""
    # "lookupd/peer" for each nsqlookupd that knows it; None if there is no nsqlookupd.
    remote_addresses: list[str] | None = None
    # The nsqlookupds that know it.
    lookupds: list[Address] = field(default_factory=list)
    # Its topics, and whether each is tombstoned.
    topics: dict[str, bool] = field(default_factory=dict)
    # Of /info, in a cluster without nsqlookupd.
    extensions: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The node's name in paths: broadcast_address:http_port."""
        return str(Address(self.broadcast_address, self.http_port))


@dataclass(slots=True)
class LookupdState:
    """The answer of one nsqlookupd."""

    address: Address
    error: str | None = None
    took_s: float = 0.0
    producers: list[Producer] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Answer(Generic[_T]):
    """The nodes found, and the errors of the daemons that did not answer."""

    value: _T
    errors: list[str] = field(default_factory=list)
    # Whether any daemon answered; False if there is none to ask.
    is_complete_failure: bool = False


class Discovery:
    """Ask for the nodes."""

    def __init__(
        self, upstream: Upstream, *, lookupds: Sequence[Address], nsqds: Sequence[Address]
    ) -> None:
        self._upstream = upstream
        self.lookupds = tuple(lookupds)
        self.nsqds = tuple(nsqds)

    @property
    def has_lookupds(self) -> bool:
        """Whether nsqlookupds are asked, not nsqds."""
        return not self.nsqds

    def set_lookupds(self, addresses: Sequence[Address]) -> None:
        """Ask other nsqlookupds from now on."""
        self.lookupds = tuple(addresses)
        self.nsqds = ()

    async def ask_lookupds(self) -> list[LookupdState]:
        """Ask each nsqlookupd for its nodes and topics."""
        return list(await asyncio.gather(*map(self._ask_lookupd, self.lookupds)))

    async def find_nodes(self) -> Answer[list[Producer]]:
        """Return all nodes."""
        if not self.has_lookupds:
            return await self._find_nsqds()
        states = await self.ask_lookupds()
        errors = [f"{state.address}: {state.error}" for state in states if state.error is not None]
        return Answer(merge_nodes(states), errors, len(errors) == len(states))

    async def find_topics(self) -> Answer[list[str]]:
        """Return the names of all topics, sorted."""
        if not self.has_lookupds:
            nodes = await self._find_nsqds()
            names = {topic for node in nodes.value for topic in node.topics}
            return Answer(sorted(names), nodes.errors, nodes.is_complete_failure)
        answers = await self._ask_all(self.lookupds, self._get_topics)
        names = {name for topics in answers.value for name in topics}
        return Answer(sorted(names), answers.errors, answers.is_complete_failure)

    async def find_producers(self, topic: str) -> Answer[list[Producer] | None]:
        """Return the nodes that have a topic, None if no daemon has heard of it.

        Tombstoned nodes are missing, as consumers do not find them either.
        """
        if not self.has_lookupds:
            nodes = await self._find_nsqds()
            having = [node for node in nodes.value if topic in node.topics]
            return Answer(having or None, nodes.errors, nodes.is_complete_failure)

        async def ask(address: Address) -> list[Producer] | None:
            try:
                found = await self._upstream.get(address, f"/lookup?topic={quote(topic)}")
            except UpstreamError as error:
                if error.status == 404:
                    return None
                raise
            return _read_producers(found, address)

        answers = await self._ask_all(self.lookupds, ask)
        known = [producers for producers in answers.value if producers is not None]
        merged: dict[str, Producer] = {}
        for producers in known:
            for producer in producers:
                merged.setdefault(producer.name, producer)
        value = list(merged.values()) if known else None
        return Answer(value, answers.errors, answers.is_complete_failure)

    async def find_inactive(self) -> Answer[dict[str, list[str]]]:
        """Return the topics that nsqlookupds know and no node has, with their channels."""
        if not self.has_lookupds:
            return Answer({})
        states = await self.ask_lookupds()
        errors = [f"{state.address}: {state.error}" for state in states if state.error is not None]
        active = {
            topic
            for state in states
            for node in state.producers
            for topic, is_tombstoned in node.topics.items()
            if not is_tombstoned
        }
        inactive = sorted({topic for state in states for topic in state.topics} - active)

        async def ask(topic: str) -> list[str]:
            def get(address: Address) -> Awaitable[list[str]]:
                return self._get_channels(address, topic)

            answers = await self._ask_all(self.lookupds, get)
            return sorted({name for names in answers.value for name in names})

        channels = await asyncio.gather(*map(ask, inactive))
        found = dict(zip(inactive, channels, strict=True))
        return Answer(found, errors, len(errors) == len(states))

    async def find_tombstones(self, topic: str) -> dict[str, float]:
        """Return since when nodes are tombstoned for a topic, as wall clock in ns by node name."""

        async def ask(address: Address) -> list[tuple[str, float]]:
            found = await self._upstream.get(address, "/debug")
            entries = found.get(f"topic:{topic}:") if isinstance(found, dict) else None
            return [
                (f"{entry.get('broadcast_address')}:{entry.get('http_port')}", at)
                for entry in (entries if isinstance(entries, list) else [])
                if isinstance(entry, dict)
                and entry.get("tombstoned") is True
                and isinstance(at := entry.get("tombstoned_at"), int)
            ]

        answers = await self._ask_all(self.lookupds, ask)
        return {name: at for pairs in answers.value for name, at in pairs}

    async def _ask_lookupd(self, address: Address) -> LookupdState:
        began = monotonic()
        state = LookupdState(address)
        try:
            nodes, state.topics = await asyncio.gather(
                self._upstream.get(address, "/nodes"), self._get_topics(address)
            )
            state.producers = _read_producers(nodes, address)
        except UpstreamError as error:
            state.error = error.text
        state.took_s = monotonic() - began
        return state

    async def _get_topics(self, address: Address) -> list[str]:
        return _read_names(await self._upstream.get(address, "/topics"), "topics")

    async def _get_channels(self, address: Address, topic: str) -> list[str]:
        found = await self._upstream.get(address, f"/channels?topic={quote(topic)}")
        return _read_names(found, "channels")

    async def _find_nsqds(self) -> Answer[list[Producer]]:
        answers = await self._ask_all(self.nsqds, self.ask_nsqd)
        return Answer(answers.value, answers.errors, answers.is_complete_failure)

    async def ask_nsqd(self, address: Address) -> Producer:
        """Ask an nsqd for its identity and its topics.

        Raises:
            UpstreamError: it does not answer.
        """
        info, stats = await asyncio.gather(
            self._upstream.get(address, "/info", is_node=True),
            self._upstream.get(address, STATS_TARGET, is_node=True),
        )
        producer = read_info(info, address)
        topics = stats.get("topics") if isinstance(stats, dict) else None
        for topic in topics if isinstance(topics, list) else []:
            name = topic.get("topic_name") if isinstance(topic, dict) else None
            if isinstance(name, str) and is_valid_topic_name(name):
                producer.topics[name] = False
        return producer

    async def _ask_all(
        self, addresses: Iterable[Address], ask: Callable[[Address], Awaitable[_T]]
    ) -> Answer[list[_T]]:
        """Ask several daemons the same, at the same time."""

        async def attempt(address: Address) -> _T | UpstreamError:
            try:
                return await ask(address)
            except UpstreamError as error:
                return UpstreamError(f"{address}: {error.text}", error.status)

        outcomes = await asyncio.gather(*map(attempt, addresses))
        errors = [outcome.text for outcome in outcomes if isinstance(outcome, UpstreamError)]
        values = [outcome for outcome in outcomes if not isinstance(outcome, UpstreamError)]
        return Answer(values, errors, not values)


def merge_nodes(states: Iterable[LookupdState]) -> list[Producer]:
    """Return the nodes that any nsqlookupd knows; the same TCP address is the same node."""
    merged: dict[tuple[str, int], Producer] = {}
    for state in states:
        for producer in state.producers:
            key = producer.broadcast_address, producer.tcp_port
            known = merged.setdefault(key, producer)
            if known is not producer:
                known.lookupds += producer.lookupds
                assert known.remote_addresses is not None
                known.remote_addresses += producer.remote_addresses or []
                for topic, is_tombstoned in producer.topics.items():
                    known.topics[topic] = known.topics.get(topic, False) or is_tombstoned
    return list(merged.values())[:MAX_NODES]


def read_info(info: object, address: Address) -> Producer:
    """Read the answer to nsqd's /info.

    Raises:
        UpstreamError: it is something else.
    """
    producer = _read_producer(info) if isinstance(info, dict) else None
    if producer is None:
        raise UpstreamError("the answer to /info names no broadcast_address and ports")
    producer.address = address
    producer.extensions = read_extensions(info)
    return producer


def read_extensions(info: object) -> frozenset[str]:
    """Return the extensions of a node: abilities that a Go nsqd lacks."""
    items = info.get("extensions") if isinstance(info, dict) else None
    return frozenset(item for item in (items or ()) if isinstance(item, str) and len(item) <= 64)


def _read_names(found: object, member: str) -> list[str]:
    names = found.get(member) if isinstance(found, dict) else None
    if names is not None and not isinstance(names, list):
        raise UpstreamError(f"an answer without a list of {member}")
    return [name for name in names or () if isinstance(name, str) and is_valid_topic_name(name)]


def _read_producers(found: object, lookupd: Address) -> list[Producer]:
    """Read the producers of an nsqlookupd's /nodes or /lookup.

    Raises:
        UpstreamError: it is something else.
    """
    items = found.get("producers") if isinstance(found, dict) else None
    if not isinstance(items, list):
        raise UpstreamError("an answer without a list of producers")
    producers = []
    for item in items[:MAX_NODES]:
        producer = _read_producer(item) if isinstance(item, dict) else None
        if producer is not None:
            producer.lookupds.append(lookupd)
            producer.remote_addresses = [f"{lookupd}/{producer.remote_address}"]
            producers.append(producer)
    return producers


def _read_producer(item: dict[str, Any]) -> Producer | None:
    """Read a node; None if it has no address that can be called."""
    host, port, tcp_port = (
        item.get(name) for name in ("broadcast_address", "http_port", "tcp_port")
    )
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        return None
    if type(port) is not int or not 0 < port < 0x10000 or type(tcp_port) is not int:
        return None
    topics, tombstones = item.get("topics"), item.get("tombstones")
    names = topics if isinstance(topics, list) else []
    marks = tombstones if isinstance(tombstones, list) else []
    marks = marks + [False] * (len(names) - len(marks))
    return Producer(
        Address(host, port),
        host,
        port,
        tcp_port,
        hostname=_text(item, "hostname"),
        version=_text(item, "version"),
        region=_text(item, "topology_region"),
        zone=_text(item, "topology_zone"),
        remote_address=_text(item, "remote_address"),
        topics={
            name: mark is True
            for name, mark in zip(names, marks, strict=False)
            if isinstance(name, str) and is_valid_topic_name(name)
        },
    )


def _text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    return clean(value[:255]) if isinstance(value, str) else ""
