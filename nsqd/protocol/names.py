"""Which topic and channel names are valid.

Topics and channels share one rule: 1 to 64 bytes of ``. a-z A-Z 0-9 _ -``, of which a trailing
``#ephemeral`` is part. Valid names are ASCII: as many bytes as characters.
"""

import re

MAX_NAME_BYTES = 64
EPHEMERAL_SUFFIX = "#ephemeral"

_NAME_TEXT = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")
_NAME_BYTES = re.compile(_NAME_TEXT.pattern.encode())


def is_valid_topic_name(name: str) -> bool:
    """Say whether a topic may have this name."""
    # fullmatch, because "$" would let a trailing newline pass.
    return len(name) <= MAX_NAME_BYTES and _NAME_TEXT.fullmatch(name) is not None


def is_valid_channel_name(name: str) -> bool:
    """Say whether a channel may have this name."""
    return is_valid_topic_name(name)


def is_ephemeral(name: str) -> bool:
    """Say whether the topic or channel of this name lives in memory only and dies when unused."""
    return name.endswith(EPHEMERAL_SUFFIX)


def decode_name(raw: bytes) -> str | None:
    """Return the name a client sent, or None if it is no valid topic or channel name."""
    # The length is checked first: a 16 KB parameter must not be scanned to be refused.
    if len(raw) > MAX_NAME_BYTES or _NAME_BYTES.fullmatch(raw) is None:
        return None
    return raw.decode("ascii")
