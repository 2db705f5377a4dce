"""The door for consumers and operators: nsqlookupd's HTTP routes, thin, over the registry.

Paths, parameters, error codes and JSON keys are those of the Go nsqlookupd, on which consumers and
nsqadmin rely. Lists are never null.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict

from prometheus_client import CONTENT_TYPE_LATEST

from lookupd.metrics import Metrics
from lookupd.registry import Peer, Registry
from lookupd.tcp import PeerServer
from nsqd import PROTOCOL_VERSION
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name
from nsqd.transport.http_server import (
    EMPTY,
    JSON_CONTENT_TYPE,
    OK,
    HttpError,
    Request,
    Response,
    Router,
    Style,
)


class HttpApi:
    """Answers requests from the registry, and counts them by path and status."""

    def __init__(
        self, registry: Registry, peer_server: PeerServer, *, clock: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._request_counts: Counter[tuple[str, int]] = Counter()
        self._metrics = Metrics(registry, peer_server, self._request_counts, clock=clock)

    def router(self) -> Router:
        """Make the routing table."""
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
            router.add(method, path, self._counted(path, handler))
        for path, handler in (("/ping", self._ping), ("/metrics", self._show_metrics)):
            router.add("GET", path, self._counted(path, handler), style=Style.PLAIN)
        return router

    def _counted(
        self, path: str, handler: Callable[[Request], Response]
    ) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            try:
                response = handler(request)
            except HttpError as error:
                self._request_counts[path, error.status] += 1
                raise
            self._request_counts[path, response.status] += 1
            return response

        return handle

    def _ping(self, request: Request) -> Response:
        return OK

    def _info(self, request: Request) -> Response:
        return Response.json({"version": PROTOCOL_VERSION})

    def _show_metrics(self, request: Request) -> Response:
        return Response(body=self._metrics.render(), content_type=CONTENT_TYPE_LATEST)

    def _topics(self, request: Request) -> Response:
        return Response.json({"topics": self._registry.topic_names()})

    def _channels(self, request: Request) -> Response:
        topic = _argument(request, "topic")
        return Response.json({"channels": self._registry.channel_names(topic)})

    def _lookup(self, request: Request) -> Response:
        topic = _argument(request, "topic")
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
        # nsqadmin pairs topics with tombstones by index, and crashes if one list is longer.
        nodes = [
            {**_producer(node.peer), "tombstones": node.tombstones, "topics": node.topics}
            for node in self._registry.nodes(now=self._clock())
        ]
        return Response.json({"producers": nodes})

    def _debug(self, request: Request) -> Response:
        now = self._clock()
        entries = _DebugEntries(now)
        members: list[bytes] = []
        for registration in self._registry.registrations(now=now):
            show = entries.__getitem__
            if registration.tombstones:
                show = entries.with_tombstones(registration.tombstones)
            # Valid names need no escapes in JSON.
            key = f"{registration.category}:{registration.key}:{registration.subkey}"
            shown = b",".join(map(show, registration.producers))
            members.append(b'"%s":[%s]' % (key.encode("ascii"), shown))
        return Response(body=b"{%s}" % b",".join(members), content_type=JSON_CONTENT_TYPE)

    def _create_topic(self, request: Request) -> Response:
        self._registry.create_topic(_valid_topic(request))
        return EMPTY

    def _delete_topic(self, request: Request) -> Response:
        self._registry.delete_topic(_argument(request, "topic"))
        return EMPTY

    def _tombstone(self, request: Request) -> Response:
        topic = _argument(request, "topic")
        self._registry.tombstone(topic, _argument(request, "node"), now=self._clock())
        return EMPTY

    def _create_channel(self, request: Request) -> Response:
        self._registry.create_channel(*_valid_topic_and_channel(request))
        return EMPTY

    def _delete_channel(self, request: Request) -> Response:
        if not self._registry.delete_channel(*_valid_topic_and_channel(request)):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return EMPTY


def _argument(request: Request, name: str) -> str:
    """Return a query parameter, which may be empty.

    Raises:
        HttpError: 400, it is missing or the query cannot be parsed.
    """
    value = request.find(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def _valid_topic(request: Request) -> str:
    topic = _argument(request, "topic")
    if not is_valid_topic_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    return topic


def _valid_topic_and_channel(request: Request) -> tuple[str, str]:
    topic = _valid_topic(request)
    channel = _argument(request, "channel")
    if not is_valid_channel_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic, channel


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


class _DebugEntries(dict[Peer, bytes]):
    """The JSON of each peer in /debug, made when first asked for.

    A peer looks the same in all its registrations but for tombstones: with 120,000 of them, of 20
    peers, /debug holds up the loop for 60 ms; it would be 470 if each were encoded anew.
    """

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now
        self._now_ns = time.time_ns()

    def __missing__(self, peer: Peer) -> bytes:
        shown = self[peer] = self._encode(peer, None)
        return shown

    def with_tombstones(self, tombstones: Mapping[Peer, float]) -> Callable[[Peer], bytes]:
        """Make the entries of a topic of which some producers are tombstoned."""
        return lambda peer: (
            self._encode(peer, tombstones[peer]) if peer in tombstones else self[peer]
        )

    def _encode(self, peer: Peer, tombstoned_at: float | None) -> bytes:
        entry = {
            **asdict(peer.identity),
            "id": peer.remote_address,
            "last_update": self._wall_clock_ns(peer.last_update),
            "tombstoned": tombstoned_at is not None,
            "tombstoned_at": 0 if tombstoned_at is None else self._wall_clock_ns(tombstoned_at),
        }
        return json.dumps(entry, separators=(",", ":")).encode("ascii")

    def _wall_clock_ns(self, at: float) -> int:
        return self._now_ns - int((self._now - at) * 1e9)
