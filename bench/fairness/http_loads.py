"""Greedy clients of the HTTP port: floods, large bodies, requests one after another."""

import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.fairness.floods import Pour, ensure_channel
from bench.fairness.row import TOPIC, Site
from bench.load import LoadResult, Start
from bench.wire import LoadError

STREAM_BYTES: Final = 1 << 18
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HttpFlood:
    """A load: `request`, again and again on one connection, without waiting for answers."""

    request: bytes

    def __call__(self, site: Site, start: Start) -> LoadResult:
        """Flood.

        Raises:
            LoadError: the daemon closes the connection.
        """
        ensure_channel(site)
        stream = self.request * (STREAM_BYTES // len(self.request))
        with wire.connect(site.daemon.http) as sock:
            start()
            cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
            pour = Pour([sock], stream)
            pour.run(site.seconds)
            ended_ns = time.monotonic_ns()
        count = pour.sent_bytes // len(self.request)
        return LoadResult(count, begin_ns, ended_ns, time.process_time() - cpu_s)


PING_REQUEST: Final = b"GET /ping HTTP/1.1\r\nHost: greedy\r\n\r\n"


def post_large_mpubs(site: Site, start: Start) -> LoadResult:
    """POST /mpub of `Site.size` lines of one byte, one request after another.

    Raises:
        LoadError: the daemon refuses one.
    """
    ensure_channel(site)
    return _ask(site, start, [("POST", f"/mpub?topic={TOPIC}", b"x\n" * site.size)])


def post_small_chunks(site: Site, start: Start) -> LoadResult:
    """POST /mpub in `Site.size` chunks of two bytes (Transfer-Encoding: chunked), time after time.

    Raises:
        LoadError: the daemon refuses one.
    """
    ensure_channel(site)
    head = (
        f"POST /mpub?topic={TOPIC} HTTP/1.1\r\nHost: greedy\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    request = head.encode() + b"2\r\nx\n\r\n" * site.size + b"0\r\n\r\n"
    count = 0
    with wire.connect(site.daemon.http) as sock:
        sock.settimeout(TIMEOUT_S)
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        while time.monotonic() < deadline:
            sock.sendall(request)
            answer = sock.recv(4096)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise LoadError(f"a chunked POST was answered with {answer[:200]!r}")
            count += site.size
        ended_ns = time.monotonic_ns()
    return LoadResult(count, begin_ns, ended_ns, time.process_time() - cpu_s)


@dataclass(frozen=True, slots=True)
class Requests:
    """A load: these requests in turn, each after the answer to the one before."""

    lines: tuple[tuple[str, str], ...]

    def __call__(self, site: Site, start: Start) -> LoadResult:
        """Ask until the time is up.

        Raises:
            LoadError: the daemon refuses a request.
        """
        ensure_channel(site)
        return _ask(site, start, [(method, path, b"") for method, path in self.lines])


def _ask(site: Site, start: Start, requests: Sequence[tuple[str, str, bytes]]) -> LoadResult:
    connection = http.client.HTTPConnection(*site.daemon.http, timeout=TIMEOUT_S)
    count = 0
    try:
        connection.connect()
        start()
        cpu_s, begin_ns = time.process_time(), time.monotonic_ns()
        deadline = time.monotonic() + site.seconds
        while time.monotonic() < deadline:
            for method, path, body in requests:
                connection.request(method, path, body)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    raise LoadError(f"{method} {path}: {answer.status} {text[:200]!r}")
                count += 1
        ended_ns = time.monotonic_ns()
    except http.client.HTTPException as error:
        raise LoadError(f"an HTTP request failed: {error}") from error
    finally:
        connection.close()
    return LoadResult(count, begin_ns, ended_ns, time.process_time() - cpu_s)
