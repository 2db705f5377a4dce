"""The list of scenarios: what is measured, how much of it, and the daemon's flags for it.

A scenario has one or more cases (`mpub/200B`, `mpub/1KB`). Every case is bounded twice, by
messages and by seconds: whichever comes first ends it, and the rate is what was done by then.
"""

from dataclasses import dataclass, replace
from typing import Final

from bench.measure import (
    WARM_UP_MESSAGES,
    Case,
    Crowd,
    measure_http,
    measure_latency,
    measure_memory,
    measure_publish,
    measure_pubsub,
    measure_sub,
    measure_sync,
    spare_messages,
)

DESCRIPTIONS: Final = {
    "mpub": "MPUB of 200 messages, 8 unanswered on 2 connections; by size, mixed is 100 to 300 B",
    "pub-sync": "one PUB at a time, waiting for its OK, on 1 and on 8 connections",
    "pub-pipelined": "PUB with 100 unanswered on one connection",
    "sub": "consume and FIN a filled queue, 2 connections, RDY 2500; by body size",
    "pubsub": "MPUB and consume at once",
    "fanout": "MPUB into 4 channels, all consumed; a message counts once all four finished it",
    "disk-mpub": "MPUB with --mem-queue-size=0",
    "disk-sub": "consume and FIN a queue filled with --mem-queue-size=0",
    "durable-mpub": "MPUB of 200, one unanswered on each of 2 connections, fsync before OK",
    "durable-pub": "one PUB at a time on 64 connections, fsync before OK",
    "latency": "2,000 PUB/s, publish to receive across two processes, default flags",
    "memory": "growth of the daemon per queued message, published by MPUB",
    "idle": "mpub and pubsub alone, and beside 2,000 idle connections and 1,000 idle consumers",
    "wide": "pubsub with 1,000 consumers that all work",
    "http-pub": "POST /pub on 16 keep-alive connections",
}

_SIZES: Final = {"10B": 10, "200B": 200, "1KB": 1024, "100KB": 100 * 1024}
_MAX_QUEUED_BYTES: Final = 1_200_000_000
# Of bigger messages, RDY 2500 would be most of the queue.
_RDY_2500_BYTES: Final = 10_000
_CROWD: Final = Crowd(idle=2000, consumers=1000)
_DISK: Final = ("--mem-queue-size=0",)
# nsqd in Go with these flags answers before the fsync, and is measured all the same.
_DURABLE: Final = ("--mem-queue-size=0", "--sync-every=1")


def _within_memory(messages: int, body_bytes: int) -> int:
    return min(messages, _MAX_QUEUED_BYTES // body_bytes)


CASES: Final = (
    *(
        Case(f"mpub/{n}", measure_publish, _within_memory(3_000_000, s), body_bytes=s)
        for n, s in _SIZES.items()
    ),
    Case("mpub/mixed", measure_publish, 3_000_000, is_mixed=True),
    Case("pub-sync/1", measure_sync, 500_000, 3.0, batch=0, window=1, connections=1),
    Case("pub-sync/8", measure_publish, 500_000, 3.0, batch=0, window=1, connections=8),
    Case("pub-pipelined", measure_publish, 2_000_000, 3.0, batch=0, window=100, connections=1),
    *(
        Case(
            f"sub/{n}",
            measure_sub,
            _within_memory(1_000_000, s),
            body_bytes=s,
            rdy=2500 if s <= _RDY_2500_BYTES else 100,
        )
        for n, s in _SIZES.items()
    ),
    Case("pubsub", measure_pubsub, 1_000_000),
    Case("fanout", measure_pubsub, 250_000, channels=4, connections=1),
    Case("disk-mpub", measure_publish, 600_000, flags=_DISK),
    Case("disk-sub", measure_sub, 400_000, flags=_DISK),
    Case("durable-mpub", measure_publish, 600_000, 5.0, window=1, connections=2, flags=_DURABLE),
    Case(
        *("durable-pub", measure_publish, 200_000, 5.0),
        batch=0,
        window=1,
        connections=64,
        flags=_DURABLE,
    ),
    Case(
        "latency",
        measure_latency,
        20_000,
        5.0,
        # What is in every default configuration, said aloud so that nothing else is chosen.
        flags=("--mem-queue-size=10000",),
        primary="p99_ms",
    ),
    Case("memory", measure_memory, 1_000_000, 30.0, primary="rss_bytes_per_message"),
    Case("idle/mpub-alone", measure_publish, 2_000_000, crowd=Crowd(0, 0)),
    Case("idle/mpub-crowd", measure_publish, 2_000_000, crowd=_CROWD),
    Case("idle/pubsub-alone", measure_pubsub, 800_000, crowd=Crowd(0, 0)),
    Case("idle/pubsub-crowd", measure_pubsub, 800_000, crowd=_CROWD),
    Case("wide", measure_pubsub, 250_000, connections=1000, rdy=5),
    Case("http-pub", measure_http, 500_000, 3.0, connections=16),
)

_QUICK_SECONDS: Final = 0.4
_QUICK_DIVISOR: Final = 50
_QUICK_CROWD: Final = Crowd(idle=100, consumers=50)
_QUICK_CONNECTIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """What the command line says about the size of a case; None leaves it as it is."""

    messages: int | None = None
    seconds: float | None = None
    is_quick: bool = False


def select_cases(names: str | None, limits: Limits) -> list[Case]:
    """The cases of these comma-separated scenarios or cases, all if None, within the limits.

    Raises:
        ValueError: a name that nothing has.
    """
    wanted = [name.strip() for name in names.split(",")] if names else list(DESCRIPTIONS)
    for name in wanted:
        if not any(name in (case.scenario, case.name) for case in CASES):
            raise ValueError(f"unknown scenario {name!r}; there are {', '.join(DESCRIPTIONS)}")
    chosen = [case for case in CASES if case.scenario in wanted or case.name in wanted]
    return [_with_flags(_limited(case, limits)) for case in chosen]


def memory_needed(case: Case) -> int | None:
    """The --mem-queue-size below which the case would measure the disk; None: any will do."""
    is_on_disk = case.flags in (_DISK, _DURABLE)
    return None if is_on_disk or case.scenario == "latency" else _most_queued(case)


def _most_queued(case: Case) -> int:
    """What the case may publish at most: rounded up to a batch on every connection."""
    return case.messages + spare_messages(case) + (case.batch + 1) * case.connections


def _limited(case: Case, limits: Limits) -> Case:
    if limits.is_quick:
        case = replace(
            case,
            messages=max(case.messages // _QUICK_DIVISOR, min(case.messages, WARM_UP_MESSAGES)),
            seconds=min(case.seconds, _QUICK_SECONDS),
            connections=min(case.connections, _QUICK_CONNECTIONS),
            crowd=_QUICK_CROWD if case.crowd == _CROWD else case.crowd,
        )
    return replace(
        case,
        messages=limits.messages or case.messages,
        seconds=limits.seconds or case.seconds,
    )


def _with_flags(case: Case) -> Case:
    """Memory enough for all of its messages, unless the case says otherwise."""
    if case.flags:
        return case
    return replace(case, flags=(f"--mem-queue-size={_most_queued(case)}",))
