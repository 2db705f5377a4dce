"""The client's errors: one tree, so that a program catches as little or as much as it wants.

An error of a publish says whether the message can have arrived: `is_certainly_not_published`.
"""


class NsqError(Exception):
    """Any failure of the client."""


class ClosedError(NsqError):
    """The producer or consumer was closed."""


class ConnectError(NsqError):
    """An nsqd cannot be reached, or does not speak NSQ's protocol."""


class TlsError(ConnectError):
    """The TLS handshake failed: authority, name, date or version."""


class NegotiationError(ConnectError):
    """The nsqd refuses a setting, or lacks a feature that was asked for."""


class AuthError(NsqError):
    """The nsqd wants a secret, refuses it, or does not permit the topic or channel."""


class DiscoveryError(NsqError):
    """No nsqlookupd gives a usable answer."""


class AlreadyAnsweredError(NsqError):
    """The message was finished, requeued or delivered anew."""


class QueueFullError(NsqError):
    """As many messages wait for nsqd's answer as may."""


class PublishError(NsqError):
    """Messages were not published, or it is not known whether they were.

    Attributes:
        is_certainly_not_published: whether no nsqd can have the message.
        confirmed_count: of a `publish_many`, how many messages an nsqd has accepted.
    """

    def __init__(self, text: str, *, is_certainly_not_published: bool = False) -> None:
        super().__init__(text)
        self.is_certainly_not_published = is_certainly_not_published
        self.confirmed_count = 0


class InvalidNameError(PublishError):
    """Not a valid name of a topic."""

    def __init__(self, text: str) -> None:
        super().__init__(text, is_certainly_not_published=True)


class MessageTooLargeError(PublishError):
    """The body is empty, or larger than the nsqd takes."""

    def __init__(self, text: str) -> None:
        super().__init__(text, is_certainly_not_published=True)


class RefusedError(PublishError):
    """The nsqd cannot publish at the moment: a full queue, a full disk, a drain. Try later."""


class ConnectionLostError(PublishError):
    """The connection broke before nsqd's answer; the messages may have arrived."""


class PublishTimeoutError(PublishError):
    """Without an answer in time."""
