"""Connections that are there and do nothing, while others work.

They are what a busy site looks like: producers that seldom publish, consumers that wait.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.load import LoadResult, Start

# Longer than any measurement, so that the crowd owes no answer to a heartbeat meanwhile.
HEARTBEAT_INTERVAL_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    """`idle` connections that only identified, `consumers` subscribed to the channel, RDY 0."""

    address: tuple[str, int]
    topic: str
    channel: str
    idle: int
    consumers: int


def hold_crowd(plan: CrowdPlan, start: Start) -> LoadResult:
    """Open all connections and keep them until this process is ended.

    Raises:
        LoadError: the daemon refuses one.
    """
    identify = wire.identify_command({"heartbeat_interval": HEARTBEAT_INTERVAL_MS})
    subscribe = f"SUB {plan.topic} {plan.channel}\n".encode()
    with ExitStack() as members:
        for number in range(plan.idle + plan.consumers):
            sock = members.enter_context(wire.connect(plan.address))
            sock.sendall(wire.MAGIC + identify)
            wire.expect(sock, wire.OK_FRAME)
            if number >= plan.idle:
                sock.sendall(subscribe)
                wire.expect(sock, wire.OK_FRAME)
        start()
    return LoadResult(plan.idle + plan.consumers, 0, 0, 0.0)
