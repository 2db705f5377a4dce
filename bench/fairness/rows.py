"""The rows of the table, in the order they are measured."""

import struct
import time
from typing import Final

from bench import wire
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
    Row("pub-mixed", "floods PUB of 1 MB, 10 KB and 10 B", Flood(_MIXED, unit_commands=1002)),
    Row("mpub", "floods MPUB of 200 x 200 B", Flood(wire.mpub_command(TOPIC, b"x" * 200, 200))),
    Row(
        *(
            "mpub-million",
            "MPUBs of a million 1-byte messages, one after another",
            publish_large_mpubs,
        ),
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

ROWS: Final = (Row(IDLE, "nobody else is there", _be_idle), *_FLOODS)


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
