"""The rows of the table, in the order they are measured."""

import struct
import time
from typing import Final

from bench import wire
from bench.fairness import backlogs, crowds, http_loads, scans, tls_loads, topics
from bench.fairness.floods import (
    SNAPPY_EMPTY_CHUNK,
    SNAPPY_HEADER,
    Flood,
    deflated,
    publish_large_mpubs,
    snappy_compressed,
)
from bench.fairness.row import TOPIC, Row, Site
from bench.load import LoadResult, Start

IDLE: Final = "idle"

_UNKNOWN_ID: Final = b"0123456789abcdef"
_SMALL: Final = b"x" * 10


def _be_idle(site: Site, start: Start) -> LoadResult:
    """Do nothing, for as long as a flood lasts."""
    start()
    begin_ns = time.monotonic_ns()
    time.sleep(site.seconds)
    return LoadResult(0, begin_ns, time.monotonic_ns(), 0.0)


def _dpub(delay_ms: int) -> bytes:
    return b"DPUB %s %d\n" % (TOPIC.encode(), delay_ms) + struct.pack(">i", 10) + _SMALL


_PUB: Final = wire.pub_command(TOPIC, _SMALL)
_MIXED: Final = (
    wire.pub_command(TOPIC, b"x" * (1 << 20)) + wire.pub_command(TOPIC, b"x" * 10_000) + _PUB * 1000
)
_SNAPPY: Final[dict[str, object]] = {"snappy": True}
_DEFLATE: Final[dict[str, object]] = {"deflate": True, "deflate_level": 6}

_FLOODS: Final = (
    Row("nop", "floods NOP", Flood(b"NOP\n")),
    Row("nop-50", "50 clients flood NOP", Flood(b"NOP\n", connections=50)),
    Row("fin", "floods FIN of an unknown id", Flood(b"FIN %s\n" % _UNKNOWN_ID, subscribes=True)),
    Row("req", "floods REQ of an unknown id", Flood(b"REQ %s 0\n" % _UNKNOWN_ID, subscribes=True)),
    Row(
        "touch",
        "floods TOUCH of an unknown id",
        Flood(b"TOUCH %s\n" % _UNKNOWN_ID, subscribes=True),
    ),
    Row("rdy", "floods RDY", Flood(b"RDY 1\n", subscribes=True)),
    Row("dpub", "floods DPUB", Flood(_dpub(3_600_000))),
    Row(
        *("dpub-200k", "200,000 pipelined DPUB", Flood(_dpub(3_600_000), is_counted=True)),
        size=200_000,
        quick_size=5_000,
    ),
    Row("pub", "floods PUB of 10 B", Flood(_PUB)),
    Row("pub-1mb", "floods PUB of 1 MB", Flood(wire.pub_command(TOPIC, b"x" * 1_000_000))),
    Row("pub-mixed", "floods PUB of 1 MB, 10 KB and 10 B", Flood(_MIXED, unit_commands=1002)),
    Row("mpub", "floods MPUB of 200 x 200 B", Flood(wire.mpub_command(TOPIC, b"x" * 200, 200))),
    Row(
        "mpub-million",
        "MPUBs of a million 1-byte messages, one after another",
        publish_large_mpubs,
        size=1_000_000,
        quick_size=50_000,
    ),
    Row(
        "snappy-empty",
        "floods empty snappy chunks",
        Flood(SNAPPY_EMPTY_CHUNK, settings=_SNAPPY, preamble=SNAPPY_HEADER),
    ),
    Row(
        "snappy-nop",
        "floods NOP compressed with snappy",
        Flood(b"NOP\n", settings=_SNAPPY, preamble=SNAPPY_HEADER, encode=snappy_compressed),
    ),
    Row(
        "deflate-nop",
        "floods NOP deflated 1000:1",
        Flood(b"NOP\n", settings=_DEFLATE, encode=deflated),
    ),
)

_MPUB: Final = wire.mpub_command(TOPIC, _SMALL, 200)
_TLS: Final = tls_loads.SETTINGS
_DISK: Final = ("--mem-queue-size=0",)
_IN_MEMORY: Final = ("--mem-queue-size=6000000",)
_LARGE_RDY: Final = (*_IN_MEMORY, "--max-rdy-count=2000000")
_DEBUG: Final = ("--log-level=debug",)

_TRAFFIC: Final = (
    Row("fanout", "floods MPUB into 20 channels", Flood(_MPUB, unit_commands=200, channels=20)),
    Row(
        "channels",
        "20,000 PUB of 10 B into 200 channels, pipelined",
        Flood(_PUB, channels=200, is_counted=True),
        flags=_IN_MEMORY,
        size=20_000,
        quick_size=500,
    ),
    Row(
        *("hot", "one consumer and one MPUB flood of one topic", crowds.consume_together),
        size=1,
        quick_size=1,
        beside=Flood(_MPUB),
    ),
    Row(
        *("consumers", "1,000 consumers and one MPUB flood of one topic", crowds.consume_together),
        size=1000,
        quick_size=50,
        beside=Flood(_MPUB),
    ),
    Row(
        *("slow-readers", "50 consumers of 100 KB read a few hundred KB/s", crowds.read_slowly),
        size=50,
        quick_size=5,
    ),
    Row(
        *("deflate-read", "a consumer wants 100 MB of noise deflated", crowds.read_deflated),
        size=100,
        quick_size=3,
    ),
    Row(
        *("sample", "a consumer wants 1 % of a million messages", crowds.sample),
        flags=_IN_MEMORY,
        size=1_000_000,
        quick_size=10_000,
    ),
    Row(
        *("requeue", "a consumer requeues all it gets", backlogs.requeue_all),
        flags=_IN_MEMORY,
        size=100_000,
        quick_size=5_000,
    ),
    Row(
        *("consume-disk", "consumes a million messages on disk", backlogs.consume_backlog),
        flags=_DISK,
        size=1_000_000,
        quick_size=10_000,
    ),
    Row(
        *("tls-nop", "floods NOP over TLS", Flood(b"NOP\n", settings=_TLS)),
        flags=tls_loads.FLAGS,
        seed=tls_loads.seed_certificate,
    ),
    Row(
        *("tls-pub", "floods PUB of 10 B over TLS", Flood(_PUB, settings=_TLS)),
        flags=tls_loads.FLAGS,
        seed=tls_loads.seed_certificate,
    ),
    Row(
        *("tls-connect", "connects with TLS, again and again", tls_loads.shake_hands),
        flags=tls_loads.FLAGS,
        seed=tls_loads.seed_certificate,
    ),
    Row("debug-nop", "floods NOP, DEBUG logging", Flood(b"NOP\n"), flags=_DEBUG),
    Row("debug-pub", "floods PUB of 10 B, DEBUG logging", Flood(_PUB), flags=_DEBUG),
    Row(
        *("retain", "floods MPUB of 200 x 10 B that are archived", Flood(_MPUB, unit_commands=200)),
        flags=("--retain-bytes=1000000000",),
        is_ours_only=True,
    ),
    Row(
        *("drop-oldest", "floods PUB of 10 B over --max-depth", Flood(_PUB)),
        flags=("--max-depth=100000", "--max-depth-policy=drop-oldest"),
        is_ours_only=True,
    ),
    Row(
        *("slow-disk", "floods PUB; each write to its queue takes 200 ms", Flood(_PUB)),
        flags=_DISK,
        has_slow_disk=True,
    ),
)

_MOMENTS: Final = (
    Row(
        *("timeout-500k", "500,000 in flight time out", backlogs.time_out, _LARGE_RDY),
        size=500_000,
        quick_size=5_000,
    ),
    Row(
        *("timeout-1m", "1,000,000 in flight time out", backlogs.time_out, _LARGE_RDY),
        size=1_000_000,
        quick_size=5_000,
    ),
    Row(
        *("deferred", "1,000,000 deferred messages come due", backlogs.come_due, _IN_MEMORY),
        size=1_000_000,
        quick_size=5_000,
    ),
    Row(
        # nsqd in Go forgets the delay of a message that goes to disk.
        *("deferred-disk", "200,000 come due, queues on disk", backlogs.come_due, _DISK),
        is_ours_only=True,
        size=200_000,
        quick_size=5_000,
    ),
    Row(
        *("expire", "1,000,000 messages expire", backlogs.expire),
        flags=(*_IN_MEMORY, "--msg-ttl=4s"),
        size=1_000_000,
        quick_size=5_000,
        is_ours_only=True,
    ),
    *(
        Row(
            f"{verb}-{where}",
            f"{verb} a queue of 5,000,000, {where}",
            backlogs.Request(f"/{noun}/{verb}", channels=channels),
            flags,
            size=5_000_000,
            quick_size=10_000,
        )
        for where, noun, channels, flags in (
            ("memory", "channel", 1, _IN_MEMORY),
            ("disk", "topic", 0, _DISK),
        )
        for verb in ("empty", "delete")
    ),
    Row(
        "unpause",
        "1,000,000 messages go to 4 channels at once",
        backlogs.Request("/topic/unpause", channels=4, is_paused=True),
        _IN_MEMORY,
        size=1_000_000,
        quick_size=10_000,
    ),
)

_CREATE: Final = (("POST", "/topic/create?topic=new"), ("POST", "/topic/delete?topic=new"))
_PAUSE: Final = tuple(("POST", f"/topic/{verb}?topic={TOPIC}") for verb in ("pause", "unpause"))

_MANY: Final = (
    Row(
        *("reconnect", "1,000 consumers reconnect, again and again", crowds.Reconnect()),
        size=1000,
        quick_size=50,
    ),
    Row(
        "reconnect-own",
        "500 consumers reconnect, each to an ephemeral topic of its own",
        crowds.Reconnect(has_own_topics=True),
        size=500,
        quick_size=20,
    ),
    Row(
        *("new-topics", "PUB to 2,000 new topics", topics.publish_to_new_topics),
        size=2000,
        quick_size=50,
    ),
    *(
        Row(name, f"5,000 topics; {text}", load, size=5000, quick_size=100, seed=topics.seed_topics)
        for name, text, load in (
            ("topics-idle", "nothing else happens", _be_idle),
            ("topics-pause", "pauses and unpauses one", http_loads.Requests(_PAUSE)),
            ("topics-create", "creates and deletes one", http_loads.Requests(_CREATE)),
            ("topics-pub", "floods PUB to all of them", topics.publish_to_all_topics),
            ("topics-stats", "polls /stats", http_loads.Requests((("GET", "/stats?format=json"),))),
        )
    ),
    Row(
        "topics-metrics",
        "5,000 topics; polls /metrics",
        http_loads.Requests((("GET", "/metrics"),)),
        size=5000,
        quick_size=100,
        seed=topics.seed_topics,
        is_ours_only=True,
    ),
    Row("http-ping", "floods GET /ping, pipelined", http_loads.HttpFlood(http_loads.PING_REQUEST)),
    Row(
        "http-pub",
        "floods POST /pub, pipelined",
        http_loads.HttpFlood(wire.post_request("greedy", TOPIC, _SMALL)),
    ),
    Row(
        "http-chunks",
        "POST /mpub in 100,000 chunks of 2 bytes",
        http_loads.post_small_chunks,
        size=100_000,
        quick_size=5_000,
    ),
    Row(
        *("http-million", "POST /mpub of a million lines", http_loads.post_large_mpubs),
        size=1_000_000,
        quick_size=50_000,
    ),
    Row(
        *("scan", "reads snapshots of 500 MB on disk", scans.Scan(), ("--mem-queue-size=0",)),
        size=2_200_000,
        quick_size=20_000,
        is_ours_only=True,
    ),
    Row(
        "snapshot",
        "takes snapshots of a million messages in memory",
        scans.Scan(backlogs.BODY, is_read=False),
        _IN_MEMORY,
        size=1_000_000,
        quick_size=10_000,
        is_ours_only=True,
    ),
)

ROWS: Final = (
    Row(IDLE, "nobody else is there", _be_idle),
    *_FLOODS,
    *_TRAFFIC,
    *_MOMENTS,
    *_MANY,
)


def select_rows(names: str | None) -> list[Row]:
    """The idle daemon first, then the rows of these comma-separated names, all if None.

    Raises:
        ValueError: a name that no row has.
    """
    known = [row.name for row in ROWS]
    wanted = [name.strip() for name in names.split(",")] if names else known
    for name in wanted:
        if name not in known:
            raise ValueError(f"unknown row {name!r}; there are {', '.join(known)}")
    return [row for row in ROWS if row.name == IDLE or row.name in wanted]
