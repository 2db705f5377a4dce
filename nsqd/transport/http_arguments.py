"""What the routes for topics and channels ask of a query: names that are there and valid.

The codes are nsqd's, which spells a bad topic in one way where a channel belongs to it and in
another where none does.
"""

from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name
from nsqd.transport.http_server import HttpError, Request


def get_argument(request: Request, name: str) -> str:
    """Return a query parameter, which may be empty.

    Raises:
        HttpError: 400, it is missing or the query cannot be parsed.
    """
    value = request.find(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def get_valid_topic_name(request: Request) -> str:
    """Return the topic that a request names.

    Raises:
        HttpError: 400.
    """
    name = get_argument(request, "topic")
    if not is_valid_topic_name(name):
        raise HttpError(400, "INVALID_TOPIC")
    return name


def get_names(request: Request) -> tuple[str, str]:
    """Return the topic and channel that a request names.

    Raises:
        HttpError: 400.
    """
    topic_name = get_argument(request, "topic")
    if not is_valid_topic_name(topic_name):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel_name = get_argument(request, "channel")
    if not is_valid_channel_name(channel_name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic_name, channel_name


def get_topic(broker: Broker, name: str) -> Topic:
    """Return a topic.

    Raises:
        HttpError: 404, there is none of that name.
    """
    topic = broker.find_topic(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def get_channel(broker: Broker, topic_name: str, channel_name: str) -> tuple[Topic, Channel]:
    """Return a channel and its topic.

    Raises:
        HttpError: 404, one of them is not there.
    """
    topic = get_topic(broker, topic_name)
    channel = topic.channels.get(channel_name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return topic, channel
