"""What `test_client_libraries` asks of every library, with gnsq (gevent)."""

import hashlib
import json
import ssl
import sys
import time
from typing import Any

import gevent
import gnsq
from gevent.event import Event

TIMEOUT_S = 20.0


def options_of(task: dict[str, Any]) -> dict[str, Any]:
    """Translate the features into gnsq's options."""
    options: dict[str, Any] = {"heartbeat_interval": 5}
    if task["ca_file"]:
        tls = {"ca_certs": task["ca_file"], "cert_reqs": ssl.CERT_REQUIRED}
        options |= {"tls_v1": True, "tls_options": tls}
    if task["compression"]:
        options[task["compression"]] = True
    if task["secret"]:
        options["auth_secret"] = task["secret"].encode()
    return options


class Publisher:
    """gnsq.Producer, or one of its connections where it is broken.

    The Producer takes every response for that of a publish, from the first one on, and so fails
    with a KeyError on the replies to AUTH and to an upgrade.
    """

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        host, _, port = address.partition(":")
        self._producer = self._connection = None
        if options.keys() & {"tls_v1", "snappy", "deflate", "auth_secret"}:
            self._connection = gnsq.NsqdTCPClient(host, int(port), **options)
            self._connection.connect()
            self._connection.identify()  # which does the rest
        else:
            self._producer = gnsq.Producer(address, **options)
            self._producer.start()

    def publish(self, *arguments: Any, **more: Any) -> str:
        """PUB or DPUB; return the reply."""
        return self._do("publish", *arguments, **more)

    def multipublish(self, *arguments: Any) -> str:
        """MPUB; return the reply."""
        return self._do("multipublish", *arguments)

    def _do(self, name: str, *arguments: Any, **more: Any) -> str:
        if self._producer is not None:
            reply = getattr(self._producer, name)(*arguments, **more, timeout=TIMEOUT_S)
        else:
            assert self._connection is not None
            getattr(self._connection, name)(*arguments, **more)
            _, reply = self._connection.read_response()
        return bytes(reply).decode()

    def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            self._producer.close()
        else:
            assert self._connection is not None
            self._connection.close_stream()


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Publish with every verb, then consume, requeue, touch and finish."""
    options = options_of(task)
    topic = task["topic"]
    publisher = Publisher(task["address"], options)
    replies = [
        publisher.publish(topic, b"one"),
        publisher.multipublish(topic, [b"two", b"three"]),
        publisher.publish(topic, task["big"].encode()),
    ]
    received: list[tuple[str, int]] = []
    is_done = Event()
    finished_at = 0.0

    def handle(_consumer: Any, message: Any) -> None:
        nonlocal finished_at
        message.enable_async()
        body = message.body
        text = hashlib.sha256(body).hexdigest() if len(body) > 100 else body.decode()
        received.append((text, message.attempts))
        if body == b"one" and message.attempts == 1:
            message.touch()
            message.requeue(0, backoff=False)
        else:
            message.finish()
        if body == b"later":
            finished_at = time.monotonic()
            is_done.set()

    consumer = gnsq.Consumer(
        topic, "ch", task["address"], message_handler=handle, max_in_flight=5, **options
    )
    consumer.start(block=False)
    started = time.monotonic()
    replies.append(publisher.publish(topic, b"later", defer=task["delay_ms"]))
    assert is_done.wait(TIMEOUT_S)
    gevent.sleep(0.1)  # for the FIN to be sent
    consumer.close()
    publisher.close()
    return {"replies": replies, "received": received, "later_s": finished_at - started}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.load(sys.stdin))))
