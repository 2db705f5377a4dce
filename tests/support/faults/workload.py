"""Clients that do everything at once to one daemon, and keep the books.

Publishers over TCP (PUB, MPUB and DPUB, several under way at a time) and HTTP, consumers that
finish, requeue, defer, touch, forget and break off, and an administrator who makes, pauses, empties
and deletes. All choices come from one seed; the timing does not, so a seed replays a scenario, not
a moment.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass

from tests.support.faults.client import (
    ERROR,
    MESSAGE,
    HttpLink,
    LinkEndedError,
    Message,
    TcpLink,
)
from tests.support.faults.drain import read_stats
from tests.support.faults.ledger import FIRST_CHANNEL, Ledger, Sent
from tests.support.faults.nsqd_process import NsqdProcess
from tests.support.v2_client import mpub_body, sized

_SETTLE_TOPIC = "settled#ephemeral"
_RECONNECT_S = 0.02
MAX_READY = 20
_CHANNELS = (FIRST_CHANNEL, "c1", "c2")


@dataclass(frozen=True, slots=True)
class Mix:
    """What the clients do, and how much of it."""

    topic_count: int = 2
    max_topic_count: int = 5
    publisher_count: int = 2
    http_publisher_count: int = 1
    consumer_count: int = 3
    has_admin: bool = True
    drop_share: float = 0.3  # of what the administrator does, empties and deletes
    max_delay_ms: int = 300
    max_body_bytes: int = 300
    pause_s: float = 0.004  # between two commands of a publisher


class Workload:
    """All clients of one life of a daemon."""

    def __init__(
        self, process: NsqdProcess, ledger: Ledger, chance: random.Random, mix: Mix | None = None
    ) -> None:
        self._process = process
        self._ledger = ledger
        self._chance = chance
        self._mix = mix or Mix()
        self._topology = asyncio.Lock()
        self._is_stopping = False
        self._consumers: dict[TcpLink, None] = {}
        # By channel: what was finished, as far as the daemon has not objected.
        self._finished: dict[tuple[str, str], set[bytes]] = {}

    async def prepare(self) -> None:
        """Make the topics that each start of this workload has, and know what is there."""
        with await HttpLink.connect(self._process.http_port) as link:
            await self._make_topics(link)

    async def _make_topics(self, link: HttpLink) -> None:
        ledger = self._ledger
        names = {f"t{number}" for number in range(self._mix.topic_count)}
        for name in sorted({*ledger.topics, *names}):
            ledger.channels.setdefault(name, set())
            await link.request("POST", f"/topic/create?topic={name}")
            status, _ = await link.request("POST", _channel("create", name, FIRST_CHANNEL))
            if status == 200:
                ledger.channels[name].add(FIRST_CHANNEL)
        for topic in await read_stats(self._process):
            name = topic["topic_name"]
            if name in ledger.channels:
                await link.request("POST", f"/topic/unpause?topic={name}")
                for channel in topic["channels"] or []:
                    ledger.channels[name].add(channel["channel_name"])
                    target = _channel("unpause", name, channel["channel_name"])
                    await link.request("POST", target)

    async def run(self, duration_s: float, *, is_stopped_gently: bool = False) -> None:
        """Have the clients at work for some time, or until the daemon is gone.

        Args:
            is_stopped_gently: they end with nothing under way, and the daemon lives; else they are
                still at work on return, and `finish` waits for them.
        """
        mix = self._mix
        self._tasks = [
            *(asyncio.create_task(self._publish_tcp()) for _ in range(mix.publisher_count)),
            *(asyncio.create_task(self._publish_http()) for _ in range(mix.http_publisher_count)),
            *(asyncio.create_task(self._consume()) for _ in range(mix.consumer_count)),
        ]
        if mix.has_admin:
            self._tasks.append(asyncio.create_task(self._administrate()))
        await asyncio.wait(self._tasks, timeout=duration_s, return_when=asyncio.FIRST_EXCEPTION)
        if is_stopped_gently:
            await self.finish()

    async def finish(self) -> None:
        """Let the clients end: they have what they wait for, or the daemon is gone."""
        self._is_stopping = True
        for link in list(self._consumers):
            self._settle(link)
        await asyncio.gather(*self._tasks)

    def note_synced(self) -> None:
        """Everything that was finished before `run` returned, gently, has been synced since."""
        for (topic, channel), bodies in self._finished.items():
            self._ledger.finish_for_sure(topic, channel, bodies)

    def _is_over(self) -> bool:
        return self._is_stopping or self._process.exit_code is not None

    # --- publishers

    def _choose_topic(self) -> str:
        ledger = self._ledger
        if len(ledger.channels) < self._mix.max_topic_count and self._chance.random() < 0.01:
            return f"t{len(ledger.channels)}"
        return self._chance.choice(ledger.topics)

    def _make_bodies(self, count: int) -> list[bytes]:
        chance = self._chance
        bodies = []
        for _ in range(count):
            size = chance.randrange(self._mix.max_body_bytes)
            if chance.random() < 0.02:
                size *= 30
            head = b"%d/%d:" % (self._ledger.next_number(), size)
            bodies.append(head + chance.randbytes(size // 2 + 1).hex().encode())
        return bodies

    async def _publish_tcp(self) -> None:
        while not self._is_over():
            with (
                contextlib.suppress(LinkEndedError),
                await TcpLink.open(self._process.tcp_port) as link,
            ):
                while not self._is_over():
                    await self._publish_some(link)
                    await asyncio.sleep(self._chance.random() * 2 * self._mix.pause_s)
            await asyncio.sleep(_RECONNECT_S)

    async def _publish_some(self, link: TcpLink) -> None:
        chance = self._chance
        batches: list[list[Sent]] = []
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            topic = self._choose_topic()
            way = chance.random()
            bodies = self._make_bodies(1 if way < 0.8 else chance.randint(2, 20))
            batches.append(self._ledger.send(topic, bodies, is_delayed=0.65 <= way < 0.8))
            if way < 0.65:
                link.send(f"PUB {topic}\n".encode() + sized(bodies[0]))
            elif way < 0.8:
                delay_ms = chance.randint(1, self._mix.max_delay_ms)
                link.send(f"DPUB {topic} {delay_ms}\n".encode() + sized(bodies[0]))
            else:
                link.send(f"MPUB {topic}\n".encode() + sized(mpub_body(*bodies)))
        for batch in batches:
            if await link.read_reply() is None:
                raise LinkEndedError  # refused; the daemon closes
            self._ledger.acknowledge(batch, link)

    async def _publish_http(self) -> None:
        while not self._is_over():
            with (
                contextlib.suppress(LinkEndedError),
                await HttpLink.connect(self._process.http_port) as link,
            ):
                while not self._is_over():
                    await self._publish_one(link)
                    await asyncio.sleep(self._chance.random() * 2 * self._mix.pause_s)
            await asyncio.sleep(_RECONNECT_S)

    async def _publish_one(self, link: HttpLink) -> None:
        chance = self._chance
        topic = self._choose_topic()
        way = chance.random()
        bodies = self._make_bodies(1 if way < 0.6 else chance.randint(2, 20))
        batch = self._ledger.send(topic, bodies, is_delayed=way < 0.1)
        if way < 0.6:
            delay = f"&defer={chance.randint(1, self._mix.max_delay_ms)}" if way < 0.1 else ""
            status, _ = await link.request("POST", f"/pub?topic={topic}{delay}", bodies[0])
        elif way < 0.8:
            status, _ = await link.request("POST", f"/mpub?topic={topic}", b"\n".join(bodies))
        else:
            target = f"/mpub?topic={topic}&binary=true"
            status, _ = await link.request("POST", target, mpub_body(*bodies))
        if status == 200:
            self._ledger.acknowledge(batch, link)

    # --- consumers

    async def _consume(self) -> None:
        while not self._is_over():
            with (
                contextlib.suppress(LinkEndedError),
                await TcpLink.open(self._process.tcp_port) as link,
            ):
                self._consumers[link] = None
                try:
                    await self._serve(link)
                finally:
                    del self._consumers[link]
            await asyncio.sleep(_RECONNECT_S)

    async def _serve(self, link: TcpLink) -> None:
        """Consume from one channel for some time."""
        place = await self._subscribe(link)
        link.send(f"RDY {self._chance.randint(1, MAX_READY)}\n".encode())
        self._ledger.book(*place).break_count += 1  # sooner or later it ends
        if self._is_stopping:
            self._settle(link)
        bodies: dict[bytes, bytes] = {}  # by id
        try:
            await self._serve_until_settled(link, place, bodies)
        except LinkEndedError:
            # Nobody knows which of its last FINs were heard.
            self._finished.setdefault(place, set()).difference_update(bodies.values())
            raise

    async def _serve_until_settled(
        self, link: TcpLink, place: tuple[str, str], bodies: dict[bytes, bytes]
    ) -> None:
        sure = self._finished.setdefault(place, set())
        while True:
            kind, data = await link.read_frame()
            if kind == MESSAGE:
                message = Message.decode(data)
                self._ledger.deliver(*place, message.body, message.attempts)
                bodies[message.id] = message.body
                if not self._answer(link, place, message):
                    raise LinkEndedError
            elif kind == ERROR and data.startswith(b"E_FIN_FAILED"):
                sure.discard(bodies[data.split()[2]])  # it had timed out
            elif kind == ERROR and not data.startswith((b"E_REQ_FAILED", b"E_TOUCH_FAILED")):
                raise LinkEndedError(data)
            elif data == b"OK":
                return  # settled

    async def _subscribe(self, link: TcpLink) -> tuple[str, str]:
        async with self._topology:
            topic = self._chance.choice(self._ledger.topics)
            known = self._ledger.channels[topic]
            channel = self._chance.choice(_CHANNELS) if FIRST_CHANNEL in known else FIRST_CHANNEL
            link.send(f"SUB {topic} {channel}\n".encode())
            if await link.read_reply() is None:
                raise LinkEndedError
            self._ledger.channels[topic].add(channel)
            return topic, channel

    def _answer(self, link: TcpLink, place: tuple[str, str], message: Message) -> bool:
        """Do something with a message; False to break the connection off."""
        chance = self._chance
        way = chance.random()
        if way < 0.6:
            self._finish(link, place, message)
        elif way < 0.72:
            link.send(b"REQ %b 0\n" % message.id)
        elif way < 0.87:
            link.send(b"REQ %b %d\n" % (message.id, chance.randint(1, self._mix.max_delay_ms)))
        elif way < 0.95:
            link.send(b"TOUCH %b\n" % message.id)
            later = asyncio.get_running_loop().call_later
            later(chance.random() * 0.2, self._finish, link, place, message)
        elif way < 0.985:
            pass  # it times out
        else:
            return False
        return True

    def _finish(self, link: TcpLink, place: tuple[str, str], message: Message) -> None:
        if link in self._consumers and not self._is_stopping:
            self._ledger.finish(*place, message.body)
            self._finished.setdefault(place, set()).add(message.body)
            link.send(b"FIN %b\n" % message.id)

    def _settle(self, link: TcpLink) -> None:
        """Have nothing more come, and an OK when all FINs have been heard."""
        link.send(f"RDY 0\nPUB {_SETTLE_TOPIC}\n".encode() + sized(b"?"))

    # --- the administrator

    async def _administrate(self) -> None:
        while not self._is_over():
            with (
                contextlib.suppress(LinkEndedError),
                await HttpLink.connect(self._process.http_port) as link,
            ):
                while not self._is_over():
                    await asyncio.sleep(self._chance.random() * 0.1)
                    async with self._topology:
                        await self._intervene(link)
            await asyncio.sleep(_RECONNECT_S)

    async def _intervene(self, link: HttpLink) -> None:
        chance = self._chance
        topic = chance.choice(self._ledger.topics)
        if chance.random() < self._mix.drop_share:
            await self._drop_something(link, topic)
        elif chance.random() < 0.3:
            await self._create(link, topic, chance.choice(_CHANNELS[1:]))
        else:
            await self._pause(link, topic, chance.choice((None, FIRST_CHANNEL)))

    async def _drop_something(self, link: HttpLink, topic: str) -> None:
        channels = self._ledger.channels[topic]
        way = self._chance.randrange(4)
        if way == 0:
            await self._drop(link, _channel("empty", topic, FIRST_CHANNEL), topic, FIRST_CHANNEL)
        elif way == 1:
            await self._drop(link, f"/topic/empty?topic={topic}", topic, None)
        elif way == 2:
            for channel in sorted(channels - {FIRST_CHANNEL})[:1]:
                self._forget(topic, channel)
                await self._drop(link, _channel("delete", topic, channel), topic, channel)
        else:
            self._forget(topic, *_CHANNELS)
            await self._drop(link, f"/topic/delete?topic={topic}", topic, None, is_certain=True)
            await link.request("POST", f"/topic/create?topic={topic}")
            await self._create(link, topic, FIRST_CHANNEL)

    def _forget(self, topic: str, *channels: str) -> None:
        self._ledger.channels[topic].difference_update(channels)

    async def _create(self, link: HttpLink, topic: str, channel: str) -> None:
        known = self._ledger.channels[topic]
        if channel == FIRST_CHANNEL or FIRST_CHANNEL in known:
            status, _ = await link.request("POST", _channel("create", topic, channel))
            if status == 200:
                self._ledger.channels[topic].add(channel)

    async def _pause(self, link: HttpLink, topic: str, channel: str | None) -> None:
        rest = f"?topic={topic}" + (f"&channel={channel}" if channel else "")
        noun = "channel" if channel else "topic"
        await link.request("POST", f"/{noun}/pause{rest}")
        await asyncio.sleep(self._chance.random() * 0.1)
        await link.request("POST", f"/{noun}/unpause{rest}")

    async def _drop(
        self,
        link: HttpLink,
        target: str,
        topic: str,
        channel: str | None,
        *,
        is_certain: bool = False,
    ) -> None:
        drop = self._ledger.begin_drop(topic, channel)
        status, _ = await link.request("POST", target)
        self._ledger.end_drop(drop, is_certain=is_certain and status == 200)


def _channel(verb: str, topic: str, channel: str) -> str:
    return f"/channel/{verb}?topic={topic}&channel={channel}"
