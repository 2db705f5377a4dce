"""The topic or channel of nsqd that a request is about."""

from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from nsqd.http.arguments import get_topic_name
from nsqd.http.server import HttpError, Request


def get_valid_topic_name(request: Request) -> str:
    """Return the topic that a request without a channel names.

    Raises:
        HttpError: 400.
    """
    return get_topic_name(request, "INVALID_TOPIC")


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
