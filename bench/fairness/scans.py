"""Readers of all that a queue holds: snapshots, and their files over HTTP, one after another."""

import http.client
import json
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Final

from bench.fairness import backlogs
from bench.fairness.floods import ensure_channel
from bench.fairness.row import TOPIC, Site
from bench.load import LoadResult, Start
from bench.wire import LoadError

BODY: Final = b"x" * 200
READ_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Scan:
    """A load: snapshots of a queue of `Site.size` messages, each read whole, until the time is up.

    Attributes:
        body: of each message.
        is_read: whether the files of a snapshot are read, or it is released at once.
    """

    body: bytes = BODY
    is_read: bool = True

    def __call__(self, site: Site, start: Start) -> LoadResult:
        """Fill the queue and scan it.

        Raises:
            LoadError: a snapshot does not have all messages.
        """
        ensure_channel(site)
        backlogs.fill(site, site.size, self.body)
        connection = http.client.HTTPConnection(*site.daemon.http, timeout=TIMEOUT_S)
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        count = 0
        while time.monotonic() < deadline or not count:
            count += self._scan(connection, site.size)
        connection.close()
        return LoadResult(count, begin_ns, time.monotonic_ns(), time.process_time() - cpu_s)

    def _scan(self, connection: http.client.HTTPConnection, size: int) -> int:
        snapshot = _ask(connection, "POST", f"/snapshot?topic={TOPIC}&channel=*")
        [queue] = snapshot["queues"]
        count = sum(queue["counts"].values())
        if count < size:
            raise LoadError(f"a snapshot has {count} messages of {size}")
        lease_id = snapshot["lease"]["id"]
        if self.is_read:
            for each in (*queue["segments"], *queue["parts"]):
                _read(connection, f"/segments/{urllib.parse.quote(each['file'])}?id={lease_id}")
        connection.request("POST", f"/snapshot/release?id={lease_id}")
        connection.getresponse().read()
        return int(count)


def _ask(connection: http.client.HTTPConnection, method: str, target: str) -> Any:
    connection.request(method, target)
    reply = connection.getresponse()
    body = reply.read()
    if reply.status != 200:
        raise LoadError(f"{target} was answered with {reply.status} {body[:200]!r}")
    return json.loads(body)


def _read(connection: http.client.HTTPConnection, target: str) -> None:
    connection.request("GET", target)
    reply = connection.getresponse()
    buffer = bytearray(READ_BYTES)
    while reply.readinto(buffer):
        pass
    if reply.status != 200:
        raise LoadError(f"{target} was answered with {reply.status}")
