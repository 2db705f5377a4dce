"""Takes everything out of a restarted daemon and compares it with what the clients expect."""

import asyncio
import contextlib
import io
import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diskqueue import DiskQueue
from diskqueue.__main__ import main as diskqueue_main
from diskqueue.envelope import decode
from tests.support.faults.client import MESSAGE, HttpLink, LinkEndedError, Message, TcpLink
from tests.support.faults.ledger import ATTEMPTS_SLACK, FIRST_CHANNEL, Expectation, Place
from tests.support.faults.nsqd_process import NsqdProcess

# Longer than any delay of the workload, and what a machine under load may need.
DRAIN_S = 15.0
_POLL_S = 0.02
# Rounds have a short --msg-timeout. What comes twice must not be due to a drain that was held up.
_IDENTITY = b'{"msg_timeout":60000}'
_SHOWN_COUNT = 5


@dataclass(slots=True)
class Drained:
    """What came out: the attempts of each delivery by channel and body."""

    deliveries: dict[Place, dict[bytes, list[int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    is_complete: bool = False

    @property
    def count(self) -> int:
        """How many messages came."""
        return sum(
            len(attempts) for bodies in self.deliveries.values() for attempts in bodies.values()
        )


async def read_stats(process: NsqdProcess) -> list[dict[str, Any]]:
    """The topics of /stats."""
    with await HttpLink.connect(process.http_port) as link:
        status, body = await link.request("GET", "/stats?format=json&include_clients=false")
    assert status == 200, body
    topics: list[dict[str, Any]] = json.loads(body)["topics"] or []
    return topics


async def drain(process: NsqdProcess, topics: list[str]) -> Drained:
    """Take and finish all messages, those that are due later included."""
    drained = Drained()
    with contextlib.ExitStack() as links:
        places = await _open_everything(process, topics)
        async with asyncio.TaskGroup() as tasks:
            consumers = []
            for place in places:
                link = links.enter_context(await TcpLink.open(process.tcp_port))
                consumers.append(link)
                tasks.create_task(_take_all(link, place, drained))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while not _is_empty(await read_stats(process)):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(_POLL_S)
                    drained.is_complete = True
            for link in consumers:
                link.abort()
    return drained


async def _open_everything(process: NsqdProcess, topics: list[str]) -> list[Place]:
    """Let all messages flow, to a first channel if there is none; return the channels."""
    places = []
    with await HttpLink.connect(process.http_port) as admin:
        names = {*topics, *(topic["topic_name"] for topic in await read_stats(process))}
        for name in sorted(names):
            for target in (f"/topic/create?topic={name}", f"/topic/unpause?topic={name}"):
                await _must_work(admin, target)
            await _must_work(admin, f"/channel/create?topic={name}&channel={FIRST_CHANNEL}")
        for topic in await read_stats(process):
            for channel in topic["channels"] or []:
                place = (topic["topic_name"], channel["channel_name"])
                await _must_work(admin, f"/channel/unpause?topic={place[0]}&channel={place[1]}")
                places.append(place)
    return places


async def _must_work(admin: HttpLink, target: str) -> None:
    status, body = await admin.request("POST", target)
    assert status == 200, (target, status, body)


async def _take_all(link: TcpLink, place: Place, drained: Drained) -> None:
    found = drained.deliveries[place]
    link.send(b"IDENTIFY\n" + struct.pack(">i", len(_IDENTITY)) + _IDENTITY)
    link.send(f"SUB {place[0]} {place[1]}\nRDY 500\n".encode())
    with contextlib.suppress(LinkEndedError):
        while True:
            kind, data = await link.read_frame()
            if kind == MESSAGE:
                message = Message.decode(data)
                found.setdefault(message.body, []).append(message.attempts)
                link.send(b"FIN " + message.id + b"\n")


def _is_empty(topics: list[dict[str, Any]]) -> bool:
    return not any(
        topic["depth"]
        or any(
            channel["depth"] or channel["in_flight_count"] or channel["deferred_count"]
            for channel in topic["channels"] or []
        )
        for topic in topics
    )


def compare(
    drained: Drained,
    expected: Expectation,
    *,
    are_doubles_allowed: bool = True,
    loss_limit: int = 0,
) -> list[str]:
    """What is wrong, in words; nothing if all is well.

    Args:
        loss_limit: so many may be lost of each channel.
    """
    problems = []
    if not drained.is_complete:
        problems.append(f"not empty after {DRAIN_S} s")
    for place in sorted(expected.required.keys() | drained.deliveries.keys()):
        found = drained.deliveries.get(place, {})
        name = ":".join(place)
        lost = expected.required.get(place, set()) - found.keys()
        problems += _describe(f"{name} lost", lost) if len(lost) > loss_limit else []
        allowed = expected.allowed.get(place[0], set())
        foreign = found.keys() - allowed
        problems += _describe(f"{name} has what was never sent", foreign)
        risen = found.keys() & expected.gone.get(place, set())
        problems += _describe(f"{name} has again what was gone for sure", risen)
        most = expected.most_attempts.get(place, {})
        fewest = expected.fewest_attempts.get(place, {})
        strange = {
            body
            for body, attempts in found.items()
            if min(attempts) <= fewest.get(body, 0)
            or max(attempts) > most.get(body, ATTEMPTS_SLACK) + 1
        }
        problems += _describe(f"{name} has wrong attempts of", strange)
        if not are_doubles_allowed:
            doubles = {body for body, attempts in found.items() if len(attempts) > 1}
            problems += _describe(f"{name} has twice", doubles)
    return problems


def _describe(what: str, bodies: set[bytes]) -> list[str]:
    if not bodies:
        return []
    shown = b", ".join(body[:40] for body in sorted(bodies)[:_SHOWN_COUNT]).decode()
    return [f"{what}: {len(bodies)} ({shown}{', ...' if len(bodies) > _SHOWN_COUNT else ''})"]


def check_directory(path: Path) -> tuple[int, str]:
    """The exit code and output of `python -m diskqueue check`, without a process for it."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = diskqueue_main(["check", str(path)])
    return code, output.getvalue()


def compare_history(data_path: Path, expected: Expectation) -> list[str]:
    """Tell which messages that were acknowledged the archive of a stopped daemon has not."""
    problems = []
    for topic, required in expected.history.items():
        queue = DiskQueue(data_path / "archive", topic)
        found: set[bytes] = set()
        while (records := queue.read(1000, 2**20)) is not None:
            found.update(decode(record).body for record in records)
        missing = required - found
        if missing:
            shown = [body[:40] for body in sorted(missing)[:_SHOWN_COUNT]]
            problems.append(
                f"archive of {topic} lost {len(missing)} of {len(required)} messages: {shown}"
            )
    return problems
