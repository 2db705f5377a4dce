"""What `test_client_libraries` asks of every library, with ansq (asyncio)."""

import asyncio
import hashlib
import json
import sys
import time
from typing import Any

from ansq.tcp.connection import open_connection

TIMEOUT_S = 20.0


async def connect(task: dict[str, Any]) -> Any:
    """Open a connection; ansq has neither TLS nor compression."""
    assert not task["ca_file"]
    assert not task["compression"]
    host, _, port = task["address"].partition(":")
    connection = await open_connection(host, int(port))
    if task["secret"]:
        reply: Any = await connection.auth(task["secret"])
        assert json.loads(reply.body)["permission_count"] == 1
        # ansq 0.3 never notes that it is authorized, and then refuses every command itself.
        connection._is_authorized = True  # noqa: SLF001 - there is no other way
    return connection


def text_of(reply: Any) -> str:
    """Return a reply as text, whichever it is."""
    return reply.body if isinstance(reply.body, str) else reply.body.decode()


async def main(task: dict[str, Any]) -> dict[str, Any]:
    """Publish with every verb, then consume, requeue, touch and finish."""
    topic = task["topic"]
    writer = await connect(task)
    replies = [
        await writer.pub(topic, "one"),
        await writer.mpub(topic, "two", "three"),
        await writer.pub(topic, task["big"]),
    ]
    reader = await connect(task)
    await reader.subscribe(topic, "ch", 5)
    started = time.monotonic()
    replies.append(await writer.dpub(topic, "later", task["delay_ms"]))
    received: list[tuple[str, int]] = []
    later_s = 0.0
    async for message in reader.messages():
        body = message.body
        text = hashlib.sha256(body).hexdigest() if len(body) > 100 else body.decode()
        received.append((text, message.attempts))
        if body == b"one" and message.attempts == 1:
            await message.touch()
            await message.req(0)
        else:
            await message.fin()
        if body == b"later":
            later_s = time.monotonic() - started
            break
    await reader.close()
    await writer.close()
    return {"replies": list(map(text_of, replies)), "received": received, "later_s": later_s}


if __name__ == "__main__":
    result = asyncio.run(asyncio.wait_for(main(json.load(sys.stdin)), TIMEOUT_S))
    sys.stdout.write(json.dumps(result))
