"""The asyncio client of NSQ: `from nsqd.client import Consumer, Producer`.

publish     Producer: batches, their queue, the senders    consume    Consumer: links, RDY, messages
handshake              the beginning of a connection; no I/O, as nsqd.protocol.client_wire
connection, pauses     one socket to an nsqd; how long to wait before the next
discovery              ask the nsqlookupds            sync     for programs without an event loop
settings, errors, stats: values that everything here uses

Called by programs and by nsqd.cli; the daemon imports nothing of it.
"""

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
from nsqd.client.settings import Address, Settings, Tls
from nsqd.client.stats import ConsumerStats, Observer, ProducerStats

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
