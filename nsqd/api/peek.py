"""GET /topic/peek and /channel/peek: a look at messages that leaves them where they are."""

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime

from nsqd.api.topics import get_channel, get_topic, get_valid_topic_name, internal_error
from nsqd.broker.errors import NewestUnknownError
from nsqd.broker.limits.causes import Cause
from nsqd.broker.peek import PeekedMessage, Place, peek_channel, peek_topic
from nsqd.broker.topic import Topic
from nsqd.http.arguments import get_names, parse_count
from nsqd.http.server import (
    JSON_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    HttpError,
    Request,
    Response,
    Router,
)
from nsqd.node import Node

DEFAULT_COUNT = 10
MAX_COUNT = 100
# Said if the files have no checksums, and so all would have to be read to find their end.
NEWEST_UNKNOWN = "NEWEST_UNKNOWN"


class PeekRoutes:
    """The routes that show messages: waiting ones, then those in flight, then deferred ones."""

    PATHS = ("/topic/peek", "/channel/peek")

    def __init__(self, node: Node) -> None:
        self._broker = node.broker
        options = node.options
        # Where clients must AUTH before SUB, bodies are shown only to holders of the token.
        self.is_open = not options.auth_http_addresses or bool(options.http_auth_token_file)

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        for path, handler in zip(self.PATHS, (self._peek_topic, self._peek_channel), strict=True):
            router.add("GET", path, handler if self.is_open else _refuse)

    def _peek_topic(self, request: Request) -> Response:
        topic = get_topic(self._broker, get_valid_topic_name(request))
        count, places, is_newest = _count(request), _places(request), _is_newest(request)
        try:
            messages = peek_topic(topic, count, places, is_newest=is_newest)
        except NewestUnknownError as error:
            raise HttpError(409, NEWEST_UNKNOWN) from error
        except OSError as error:
            raise internal_error("peek into", topic.name, error) from error
        return self._reply(request, topic, {"topic": topic.name}, messages)

    def _peek_channel(self, request: Request) -> Response:
        topic, channel = get_channel(self._broker, *get_names(request))
        count, places, is_newest = _count(request), _places(request), _is_newest(request)
        try:
            messages = peek_channel(channel, count, places, is_newest=is_newest)
        except NewestUnknownError as error:
            raise HttpError(409, NEWEST_UNKNOWN) from error
        except OSError as error:
            raise internal_error("peek into", f"{topic.name}:{channel.name}", error) from error
        names = {"topic": topic.name, "channel": channel.name}
        return self._reply(request, topic, names, messages)

    def _reply(
        self,
        request: Request,
        topic: Topic,
        names: dict[str, str],
        messages: list[PeekedMessage],
    ) -> Response:
        now = self._broker.now
        causes = self._broker.causes.find(topic, (message.message_id for message in messages))
        if request.find("format") == "json":
            shown = [
                encode_message(message, now, causes.get(message.message_id)) for message in messages
            ]
            body = json.dumps({**names, "messages": shown}, separators=(",", ":"))
            return Response(body=body.encode(), content_type=JSON_CONTENT_TYPE)
        lines = [
            format_message(message, now, causes.get(message.message_id)) for message in messages
        ]
        text = "".join(lines)
        return Response(body=text.encode(), content_type=TEXT_CONTENT_TYPE)


def encode_message(
    message: PeekedMessage, now: float, cause: Cause | None = None
) -> dict[str, object]:
    """Return a message as the members of a JSON object; a body that is no UTF-8 is in base64.

    Args: cause: of a dead letter.
    """
    members: dict[str, object] = {
        "id": message.message_id.decode("latin-1"),
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
        "size": len(message.body),
        "where": message.place.value,
    }
    if message.deadline is not None:
        key = "timeout_ms" if message.place is Place.IN_FLIGHT else "due_ms"
        members[key] = _milliseconds_left(message.deadline, now)
    if cause is not None:
        members["origin"] = {
            "topic": cause.topic_name,
            "channel": cause.channel_name,
            "reason": cause.reason,
            "attempts": cause.attempts,
            "id": cause.message_id.decode("latin-1"),
            "timestamp": cause.timestamp_ns,
        }
    try:
        members["body"] = message.body.decode()
    except UnicodeDecodeError:
        members["body_base64"] = base64.b64encode(message.body).decode()
    return members


def format_message(message: PeekedMessage, now: float, cause: Cause | None = None) -> str:
    """Return a message as a line: where it is, id, time, attempts, size and the body, quoted.

    Args: cause: of a dead letter, named before the body.
    """
    seconds, nanoseconds = divmod(message.timestamp_ns, 10**9)
    time_text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    left = ""
    if message.deadline is not None:
        left = f" in {_milliseconds_left(message.deadline, now)}ms"
    origin = ""
    if cause is not None:
        channel = f":{cause.channel_name}" if cause.channel_name else ""
        origin = f" from: {cause.topic_name}{channel} {cause.reason}: {cause.attempts}"
    return (
        f"{message.place.value + left:<20} {message.message_id.decode('latin-1')} {time_text}"
        f" attempts: {message.attempts} size: {len(message.body)}{origin}"
        f" {json.dumps(message.body.decode(errors='backslashreplace'), ensure_ascii=False)}\n"
    )


def _milliseconds_left(deadline: float, now: float) -> int:
    return max(round((deadline - now) * 1000), 0)


def _count(request: Request) -> int:
    text = request.find("count")
    if text is None:
        return DEFAULT_COUNT
    count = parse_count(text, MAX_COUNT)
    if count is None:
        raise HttpError(400, "INVALID_ARG_COUNT")
    return count


def _places(request: Request) -> Iterable[Place]:
    text = request.find("where")
    if text is None:
        return list(Place)
    try:
        return [Place(name) for name in text.split(",")]
    except ValueError as error:
        raise HttpError(400, "INVALID_ARG_WHERE") from error


def _is_newest(request: Request) -> bool:
    order = request.find("order") or "oldest"
    if order not in ("oldest", "newest"):
        raise HttpError(400, "INVALID_ARG_ORDER")
    return order == "newest"


def _refuse(_request: Request) -> Response:
    raise HttpError(403, "HTTP_AUTH_TOKEN_FILE_REQUIRED")
