"""HttpApi: nsqlookupd's HTTP routes for consumers and operators, thin, over the registry.

Paths, parameters, error codes and JSON keys are those of the Go nsqlookupd, on which consumers and
nsqadmin rely. Lists are never null.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from prometheus_client import CONTENT_TYPE_LATEST

from lookupd.metrics import Metrics
from lookupd.options import PROGRAM
from lookupd.registry import ActivePeer, Entry, Peer, Registry
from lookupd.tcp import PeerServer
from nsqd import PROTOCOL_VERSION
from nsqd.http.arguments import get_argument, get_names, get_topic_name
from nsqd.http.debug import DebugRoutes
from nsqd.http.server import (
    EMPTY,
    JSON_CONTENT_TYPE,
    OK,
    HttpError,
    Request,
    Response,
    Router,
    Style,
    log_request,
)

# Stands in the metrics for every path that has no route; no path lacks a slash.
OTHER_PATHS = "other"

# Of these each takes some 300 bytes, and 8 KB at most.
_PRODUCERS_PER_PART = 50
_BETWEEN_NAMES = '","'


class HttpApi:
    """Answer requests from the registry, and count them by path and status."""

    def __init__(
        self, registry: Registry, peer_server: PeerServer, *, clock: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._request_counts: Counter[tuple[str, int]] = Counter()
        self.metrics = Metrics(registry, peer_server, self._request_counts, clock=clock)
        self.router = self._make_router()

    def on_request(self, request: Request, response: Response, duration_s: float) -> None:
        """Count a request that was answered or refused, and write it to the log."""
        # One counter for all unknown paths: a client that tries many must not fill the memory.
        path = request.path if self.router.has_path(request.path) else OTHER_PATHS
        self._request_counts[path, response.status] += 1
        log_request(request, response, duration_s)

    def _make_router(self) -> Router:
        router = Router()
        for method, path, handler in (
            ("GET", "/info", self._info),
            ("GET", "/topics", self._topics),
            ("GET", "/channels", self._channels),
            ("GET", "/lookup", self._lookup),
            ("GET", "/nodes", self._nodes),
            ("GET", "/debug", self._debug),
            ("POST", "/topic/create", self._create_topic),
            ("POST", "/topic/delete", self._delete_topic),
            ("POST", "/topic/tombstone", self._tombstone),
            ("POST", "/channel/create", self._create_channel),
            ("POST", "/channel/delete", self._delete_channel),
        ):
            router.add(method, path, handler)
        router.add("GET", "/ping", self._ping, style=Style.PLAIN)
        router.add("GET", "/metrics", self._show_metrics, style=Style.PLAIN)
        DebugRoutes(PROGRAM).add_to(router)
        return router

    def _ping(self, request: Request) -> Response:
        return OK

    def _info(self, request: Request) -> Response:
        return Response.json({"version": PROTOCOL_VERSION})

    def _show_metrics(self, request: Request) -> Response:
        return Response(body=self.metrics.render(), content_type=CONTENT_TYPE_LATEST)

    def _topics(self, request: Request) -> Response:
        return _json(f'{{"topics":{_encode_names(self._registry.topic_names())}}}'.encode())

    def _channels(self, request: Request) -> Response:
        topic = get_argument(request, "topic")
        names = self._registry.channel_names(topic)
        return _json(f'{{"channels":{_encode_names(names)}}}'.encode())

    def _lookup(self, request: Request) -> Response:
        topic = get_argument(request, "topic")
        producers = self._registry.find_producers(topic, now=self._clock())
        if producers is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return Response.json(
            {
                "channels": self._registry.channel_names(topic),
                "producers": [_producer(peer) for peer in producers],
            }
        )

    def _nodes(self, request: Request) -> Response:
        nodes = map(_encode_node, self._registry.nodes(now=self._clock()))
        return _streamed(_list_parts('{"producers":[', nodes, "]}"))

    def _debug(self, request: Request) -> Response:
        now = self._clock()
        entries = _DebugEntries(now)
        members = map(entries.encode_member, self._registry.registrations(now=now))
        return _streamed(_member_parts(members))

    def _create_topic(self, request: Request) -> Response:
        self._registry.create_topic(get_topic_name(request))
        return EMPTY

    def _delete_topic(self, request: Request) -> Response:
        self._registry.delete_topic(get_argument(request, "topic"))
        return EMPTY

    def _tombstone(self, request: Request) -> Response:
        topic = get_argument(request, "topic")
        self._registry.tombstone(topic, get_argument(request, "node"), now=self._clock())
        return EMPTY

    def _create_channel(self, request: Request) -> Response:
        self._registry.create_channel(*get_names(request))
        return EMPTY

    def _delete_channel(self, request: Request) -> Response:
        if not self._registry.delete_channel(*get_names(request)):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return EMPTY


def _json(body: bytes) -> Response:
    return Response(body=body, content_type=JSON_CONTENT_TYPE)


def _streamed(parts: Iterator[str]) -> Response:
    """Make a reply of any length: a few bytes of a peer can take up a lot of room in it."""
    return Response.streamed(map(str.encode, parts), JSON_CONTENT_TYPE)


def _member_parts(members: Iterable[Iterator[str]]) -> Iterator[str]:
    """Give the parts of an object of which each member is made of parts."""
    separator = "{"
    for member in members:
        yield separator
        yield from member
        separator = ","
    yield "}" if separator == "," else "{}"


def _list_parts(opening: str, items: Iterable[str], closing: str) -> Iterator[str]:
    """Give the parts of a document: items with commas in between, each made when its turn comes."""
    separator = opening
    for item in items:
        yield separator + item
        separator = ","
    yield closing if separator == "," else opening + closing


def _encode_names(names: Sequence[str]) -> str:
    """Return a JSON list. Valid names need no escapes, so ten thousand take 0.1 ms."""
    return f'["{_BETWEEN_NAMES.join(names)}"]' if names else "[]"


def _encode_node(node: ActivePeer) -> str:
    # nsqadmin pairs topics with tombstones by index, and crashes if one list is longer.
    producer = json.dumps(_producer(node.peer), separators=(",", ":"))
    tombstones = json.dumps(node.tombstones, separators=(",", ":"))
    topics = _encode_names(node.topics)
    return f'{producer[:-1]},"tombstones":{tombstones},"topics":{topics}}}'


def _producer(peer: Peer) -> dict[str, object]:
    identity = peer.identity
    return {
        "remote_address": peer.remote_address,
        "hostname": identity.hostname,
        "broadcast_address": identity.broadcast_address,
        "tcp_port": identity.tcp_port,
        "http_port": identity.http_port,
        "version": identity.version,
        "topology_zone": identity.topology_zone,
        "topology_region": identity.topology_region,
    }


class _DebugEntries(dict[Peer, str]):
    """The JSON of each peer in /debug, made when first asked for.

    A peer looks the same in all its registrations but for tombstones: with 120,000 of them, of 20
    peers, /debug takes 60 ms; it would be 470 if each were encoded anew.
    """

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now
        self._now_ns = time.time_ns()

    def encode_member(self, registration: Entry) -> Iterator[str]:
        """Give a key of the database with its producers, some of them at a time."""
        show = self.__getitem__
        if registration.tombstones:
            show = self.with_tombstones(registration.tombstones)
        # Valid names need no escapes in JSON.
        separator = f'"{registration.category}:{registration.key}:{registration.subkey}":['
        producers = registration.producers
        for start in range(0, len(producers), _PRODUCERS_PER_PART):
            shown = map(show, producers[start : start + _PRODUCERS_PER_PART])
            yield separator + ",".join(shown)
            separator = ","
        yield "]"

    def __missing__(self, peer: Peer) -> str:
        shown = self[peer] = self._encode(peer, None)
        return shown

    def with_tombstones(self, tombstones: Mapping[Peer, float]) -> Callable[[Peer], str]:
        """Make the entries of a topic of which some producers are tombstoned."""
        return lambda peer: (
            self._encode(peer, tombstones[peer]) if peer in tombstones else self[peer]
        )

    def _encode(self, peer: Peer, tombstoned_at: float | None) -> str:
        entry = {
            **asdict(peer.identity),
            "id": peer.remote_address,
            "last_update": self._wall_clock_ns(peer.last_update),
            "tombstoned": tombstoned_at is not None,
            "tombstoned_at": 0 if tombstoned_at is None else self._wall_clock_ns(tombstoned_at),
        }
        return json.dumps(entry, separators=(",", ":"))

    def _wall_clock_ns(self, at: float) -> int:
        return self._now_ns - int((self._now - at) * 1e9)
