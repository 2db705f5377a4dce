"""The topic or channel that a request names, and the answer if its disk refuses."""

import logging

from nsqd.broker.broker import Broker
from nsqd.broker.channel import Channel
from nsqd.broker.errors import cause_of
from nsqd.broker.health import FULL_ERRNOS
from nsqd.broker.topic import Topic
from nsqd.http.arguments import get_topic_name
from nsqd.http.server import HttpError, Request

logger = logging.getLogger(__name__)


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


def disk_error(error: OSError) -> HttpError:
    """Return the answer to a client whose request the disk refused; nsqd says EXITING."""
    code = "DISK_FULL" if error.errno in FULL_ERRNOS else "DISK_ERROR"
    return HttpError(503, f"{code}: {cause_of(error)}")


def internal_error(verb: str, name: str, error: Exception) -> HttpError:
    """Log why a queue could not be emptied, deleted or read; return the answer that NSQ gives."""
    logger.error("HTTP: failed to %s %s - %s", verb, name, error)
    return HttpError(500, "INTERNAL_ERROR")
