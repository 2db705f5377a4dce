"""The asyncio client of NSQ: `from nsqd.client import Consumer, Producer`.

publish     Producer: batches, their queue, the senders    consume    Consumer: links, RDY, messages
handshake              the beginning of a connection; no I/O, as nsqd.protocol.client_wire
connection, pauses     one socket to an nsqd; how long to wait before the next
discovery              ask the nsqlookupds            sync     for programs without an event loop
address, settings, errors, stats: values that everything here uses

Called by programs and by nsqd.cli; the daemon imports nothing of it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqd.client.address import Address
    from nsqd.client.consume.backoff import BackoffPolicy
    from nsqd.client.consume.consumer import Consumer
    from nsqd.client.consume.message import Batch, Message, Requeue
    from nsqd.client.errors import (
        AlreadyAnsweredError,
        AuthError,
        ClosedError,
        ConnectError,
        ConnectionLostError,
        DiscoveryError,
        InvalidNameError,
        MessageTooLargeError,
        NegotiationError,
        NsqError,
        PublishError,
        PublishTimeoutError,
        QueueFullError,
        RefusedError,
        TlsError,
    )
    from nsqd.client.publish.producer import Producer
    from nsqd.client.publish.queue import Bounds
    from nsqd.client.settings import Settings, Tls
    from nsqd.client.stats import ConsumerStats, Observer, ProducerStats

# The module of each name, imported with its first use: who publishes pays for no consumer.
_MODULES = {
    "Address": "address",
    "AlreadyAnsweredError": "errors",
    "AuthError": "errors",
    "BackoffPolicy": "consume.backoff",
    "Batch": "consume.message",
    "Bounds": "publish.queue",
    "ClosedError": "errors",
    "ConnectError": "errors",
    "ConnectionLostError": "errors",
    "Consumer": "consume.consumer",
    "ConsumerStats": "stats",
    "DiscoveryError": "errors",
    "InvalidNameError": "errors",
    "Message": "consume.message",
    "MessageTooLargeError": "errors",
    "NegotiationError": "errors",
    "NsqError": "errors",
    "Observer": "stats",
    "Producer": "publish.producer",
    "ProducerStats": "stats",
    "PublishError": "errors",
    "PublishTimeoutError": "errors",
    "QueueFullError": "errors",
    "RefusedError": "errors",
    "Requeue": "consume.message",
    "Settings": "settings",
    "Tls": "settings",
    "TlsError": "errors",
}
__all__ = [
    "Address",
    "AlreadyAnsweredError",
    "AuthError",
    "BackoffPolicy",
    "Batch",
    "Bounds",
    "ClosedError",
    "ConnectError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerStats",
    "DiscoveryError",
    "InvalidNameError",
    "Message",
    "MessageTooLargeError",
    "NegotiationError",
    "NsqError",
    "Observer",
    "Producer",
    "ProducerStats",
    "PublishError",
    "PublishTimeoutError",
    "QueueFullError",
    "RefusedError",
    "Requeue",
    "Settings",
    "Tls",
    "TlsError",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
