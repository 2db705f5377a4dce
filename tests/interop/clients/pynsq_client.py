"""What `test_client_libraries` asks of every library, with pynsq (tornado)."""

import asyncio
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import nsq
import nsq.deflate_socket
import nsq.snappy_socket

TIMEOUT_S = 20.0

# When a read completes nothing, pynsq raises OSError(EWOULDBLOCK). With that one argument it is no
# BlockingIOError, the only thing tornado waits after; it closes the connection instead.
_patient_socket = SimpleNamespace(error=lambda code: BlockingIOError(code, "would block"))
nsq.deflate_socket.socket = nsq.snappy_socket.socket = _patient_socket


def options_of(task: dict[str, Any]) -> dict[str, Any]:
    """Translate the features into pynsq's options."""
    options: dict[str, Any] = {"heartbeat_interval": 5}
    if task["ca_file"]:
        options |= {"tls_v1": True, "tls_options": {"ca_certs": task["ca_file"]}}
    if task["compression"]:
        options[task["compression"]] = True
    if task["secret"]:
        options["auth_secret"] = task["secret"]
    return options


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that pynsq has no event for."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


async def publish(writer: Any, verb: str, *arguments: Any) -> str:
    """Publish, once there is a connection, and return the reply."""
    await wait_until(lambda: bool(writer.conns))
    replied = asyncio.get_running_loop().create_future()
    getattr(writer, verb)(*arguments, callback=lambda conn, data: replied.set_result(data))
    reply = await replied
    if isinstance(reply, nsq.Error):
        raise reply
    return bytes(reply).decode()


async def main(task: dict[str, Any]) -> dict[str, Any]:
    """Publish with every verb, then consume, requeue, touch and finish."""
    options = options_of(task)
    topic = task["topic"]
    writer = nsq.Writer([task["address"]], **options)
    big = task["big"].encode()
    started = time.monotonic()
    replies = [
        await publish(writer, "pub", topic, b"one"),
        await publish(writer, "mpub", topic, [b"two", b"three"]),
        await publish(writer, "pub", topic, big),
    ]
    received: list[tuple[str, int]] = []
    done = asyncio.get_running_loop().create_future()

    def handle(message: Any) -> None:
        message.enable_async()
        body = message.body
        text = hashlib.sha256(body).hexdigest() if len(body) > 100 else body.decode()
        received.append((text, message.attempts))
        if body == b"one" and message.attempts == 1:
            message.touch()
            message.requeue(backoff=False, delay=0)
        else:
            message.finish()
        if body == b"later":
            done.set_result(time.monotonic() - started)

    reader = nsq.Reader(
        topic=topic,
        channel="ch",
        message_handler=functools.partial(handle),
        nsqd_tcp_addresses=[task["address"]],
        max_in_flight=5,
        **options,
    )
    await wait_until(lambda: any(conn.rdy for conn in reader.conns.values()))
    started = time.monotonic()
    replies.append(await publish(writer, "dpub", topic, task["delay_ms"], b"later"))
    later_s = await done
    await asyncio.sleep(0.1)  # for the FIN to be sent
    reader.close()
    return {"replies": replies, "received": received, "later_s": later_s}


if __name__ == "__main__":
    result = asyncio.run(asyncio.wait_for(main(json.load(sys.stdin)), TIMEOUT_S))
    sys.stdout.write(json.dumps(result))
