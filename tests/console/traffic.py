"""Traffic that looks like a shop's, for the pictures of docs/: orders, clicks, failing payments."""

import asyncio
import json
import math
import random
import threading
import time

HOST = "127.0.0.1"
CHANNELS = {
    "orders": ("billing", "mail", "warehouse"),
    "clicks": ("ads", "analytics"),
    "payments": ("ledger",),
    "signups#ephemeral": ("crm",),
    "invoices": ("archive", "print"),
}
RATES = {"orders": 120, "clicks": 300, "payments": 25, "invoices": 15}
LIBRARIES = ("go-nsq/1.1.0", "pynsq/0.9.1", "nsqjs/0.13.0")
TICK_S = 0.1


def sized(data: bytes) -> bytes:
    """Put the length before it, as the protocol does."""
    return len(data).to_bytes(4, "big") + data


def make_body(topic: str) -> bytes:
    """Make a message of a topic."""
    order = random.randrange(10**15, 10**16)
    values: dict[str, object] = {"id": order, "user": random.choice(("ada", "bob", "eve"))}
    if topic == "clicks":
        values |= {"page": random.choice(("/", "/cart", "/shoes/42")), "ms": random.randrange(900)}
    else:
        items = [{"sku": f"A-{n}", "count": n + 1} for n in range(random.randrange(1, 4))]
        values |= {"amount": round(random.random() * 200, 2), "items": items}
    return json.dumps(values).encode()


class Traffic:
    """Producers and consumers of one nsqd, in a thread of their own, until `stop`."""

    def __init__(self, tcp_port: int) -> None:
        self._port = tcp_port
        self._random = random.Random(14)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End all connections."""
        self._ended.set()
        self._thread.join()

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self._produce(topic)) for topic in RATES]
        number = 0
        for topic, channels in CHANNELS.items():
            for channel in channels:
                # Nobody bills: the first thing that the console says.
                for _ in range(0 if channel == "billing" else self._random.randrange(1, 4)):
                    number += 1
                    tasks.append(asyncio.create_task(self._consume(topic, channel, number)))
        while not self._ended.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(TICK_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _produce(self, topic: str) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        about = {"client_id": f"shop-{topic}", "hostname": "shop-1", "user_agent": LIBRARIES[0]}
        writer.write(b"  V2IDENTIFY\n" + sized(json.dumps(about).encode()))
        answers = asyncio.create_task(self._answer(reader, writer))
        try:
            while True:
                wave = 1 + 0.5 * math.sin(time.monotonic() / 17) + 0.2 * self._random.random()
                for _ in range(max(1, round(RATES[topic] * TICK_S * wave))):
                    writer.write(f"PUB {topic}\n".encode() + sized(make_body(topic)))
                await writer.drain()
                await asyncio.sleep(TICK_S)
        finally:
            answers.cancel()
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            if (await reader.readexactly(size))[4:] == b"_heartbeat_":
                writer.write(b"NOP\n")

    async def _consume(self, topic: str, channel: str, number: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        about = {
            "client_id": f"{channel}-{number}",
            "hostname": f"worker-{number}",
            "user_agent": self._random.choice(LIBRARIES),
        }
        ready = 40 if topic == "clicks" else 12
        writer.write(b"  V2IDENTIFY\n" + sized(json.dumps(about).encode()))
        writer.write(f"SUB {topic} {channel}\nRDY {ready}\n".encode())
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                data = await reader.readexactly(size)
                if data[:4] == b"\0\0\0\2":
                    asyncio.get_running_loop().call_later(
                        self._random.random() * 0.08,
                        writer.write,
                        self._verdict(topic, data[14:30]),
                    )
                elif data[4:] == b"_heartbeat_":
                    writer.write(b"NOP\n")
        finally:
            writer.close()

    def _verdict(self, topic: str, message_id: bytes) -> bytes:
        """Most messages are done; some payments never are."""
        if self._random.random() < (0.3 if topic == "payments" else 0.01):
            return b"REQ " + message_id + b" 0\n"
        return b"FIN " + message_id + b"\n"
