"""Thousands of topics: a daemon that has them from the start, and a client that makes them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench import wire
from bench.fairness.floods import Pour
from bench.fairness.row import Site
from bench.load import LoadResult, Start

TIMEOUT_S: Final = 60.0


def seed_topics(count: int) -> Callable[[Path], None]:
    """A function that makes the data directory of a daemon with this many topics."""

    def seed(data_path: Path) -> None:
        channels = [{"name": name, "paused": False} for name in ("one", "two")]
        topics = [
            {"name": f"topic_{number}", "paused": False, "channels": channels}
            for number in range(count)
        ]
        document = {"topics": topics, "version": "1.3.0"}
        (data_path / "nsqd.dat").write_text(json.dumps(document))

    return seed


def publish_to_new_topics(site: Site, start: Start) -> LoadResult:
    """PUB to `Site.size` topics that do not exist yet, without waiting for answers.

    Raises:
        LoadError: the daemon refuses one.
    """
    commands = b"".join(wire.pub_command(f"new_{n}", b"x") for n in range(site.size))
    with wire.connect_publisher(site.daemon.tcp) as sock:
        sock.settimeout(TIMEOUT_S)
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        sock.sendall(commands)
        wire.expect(sock, wire.OK_FRAME * site.size)
        ended_ns = time.monotonic_ns()
    return LoadResult(site.size, begin_ns, ended_ns, time.process_time() - cpu_s)


def publish_to_all_topics(site: Site, start: Start) -> LoadResult:
    """Flood PUB to the seeded topics, one after another.

    Raises:
        LoadError: the daemon closes the connection.
    """
    stream = b"".join(wire.pub_command(f"topic_{n}", b"x" * 10) for n in range(site.size))
    with wire.connect_publisher(site.daemon.tcp) as sock:
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        pour = Pour([sock], stream)
        pour.run(site.seconds)
        ended_ns = time.monotonic_ns()
    count = pour.sent_bytes * site.size // len(stream)
    return LoadResult(count, begin_ns, ended_ns, time.process_time() - cpu_s)
