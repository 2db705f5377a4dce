"""Arguments of a query: required, valid names; numbers. The error codes are NSQ's."""

from nsqd.http.server import HttpError, Request
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name


def get_argument(request: Request, name: str) -> str:
    """Return a query parameter, which may be empty.

    Raises:
        HttpError: 400, it is missing or the query cannot be parsed.
    """
    value = request.find(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def parse_count(text: str, maximum: int) -> int | None:
    """Return a decimal number from 1 to the maximum; None if the text is anything else."""
    # The length first: int() refuses thousands of digits with an error of its own.
    if len(text) > len(str(maximum)) or not (text.isascii() and text.isdecimal()):
        return None
    count = int(text)
    return count if 1 <= count <= maximum else None


def get_topic_name(request: Request, invalid_code: str = "INVALID_ARG_TOPIC") -> str:
    """Return the topic that a request names.

    Args:
        invalid_code: nsqd has another one where no channel belongs to the topic.

    Raises:
        HttpError: 400.
    """
    name = get_argument(request, "topic")
    if not is_valid_topic_name(name):
        raise HttpError(400, invalid_code)
    return name


def get_names(request: Request) -> tuple[str, str]:
    """Return the topic and channel that a request names.

    Raises:
        HttpError: 400.
    """
    topic_name = get_topic_name(request)
    channel_name = get_argument(request, "channel")
    if not is_valid_channel_name(channel_name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic_name, channel_name
