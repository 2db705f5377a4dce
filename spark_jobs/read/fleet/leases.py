"""Leases of snapshots: a snapshot is there as long as its lease is renewed.

A driver that keeps a snapshot for several reads has a `LeaseKeeper`, which renews until it is
closed and releases then. Without one, the tasks that read renew the lease from a thread, also while
Spark does not take their rows; it ends by itself some time after the last of them. A lease that
nobody has read yet lasts as long as the option lease says.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from spark_jobs.read.fleet.client import NodeClient, NodeError, find_client
from spark_jobs.read.fleet.options import FleetOptions

_RENEWALS_PER_LEASE = 3
# How long a snapshot stays after its last reader: for a task that Spark runs again elsewhere.
_LINGER_S = 120.0
_MAX_KNOWN = 4096

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one snapshot of one node."""

    url: str
    id: str


class _Readers:
    """The leases under which this process reads, renewed by one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Lease, int] = {}
        self._options: dict[Lease, FleetOptions] = {}
        self._thread: threading.Thread | None = None

    def begin(self, lease: Lease, options: FleetOptions) -> None:
        """Note a reader."""
        with self._lock:
            self._counts[lease] = self._counts.get(lease, 0) + 1
            self._options[lease] = options
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()

    def end(self, lease: Lease) -> None:
        """Note that a reader is done."""
        with self._lock:
            self._counts[lease] -= 1
            if not self._counts[lease]:
                del self._counts[lease]
                del self._options[lease]

    def _run(self) -> None:
        while True:
            time.sleep(_LINGER_S / _RENEWALS_PER_LEASE)
            with self._lock:
                leases = dict(self._options)
            for lease, options in leases.items():
                try:
                    client = find_client(lease.url, options, "renew")
                    renew(client, lease, min(options.lease_s, _LINGER_S))
                except NodeError as error:
                    # The reader fails with the same words.
                    _logger.warning("lease not renewed %s", error)


_readers = _Readers()
# When this process has seen a lease for the first time, by then.
_known: set[Lease] = set()


@contextmanager
def reading(lease: Lease | None, options: FleetOptions) -> Iterator[None]:
    """Keep a lease while a file is read, unless a driver keeps it."""
    if lease is None or options.snapshot_file is not None:
        yield
        return
    _readers.begin(lease, options)
    try:
        yield
    finally:
        _readers.end(lease)


def take_over(client: NodeClient, lease: Lease, options: FleetOptions) -> None:
    """Renew a lease at its first use in this process: it may have waited long to be read.

    Raises:
        NodeError: the lease has ended, or the node cannot be reached.
    """
    if options.snapshot_file is None and lease not in _known:
        renew(client, lease, min(options.lease_s, _LINGER_S))
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known.add(lease)


def renew(client: NodeClient, lease: Lease, lease_s: float) -> None:
    """Have a lease last so long from now.

    Raises:
        NodeError: the lease has ended, or the node cannot be reached.
    """
    target = f"/snapshot/renew?id={quote(lease.id)}&lease={format_lease(lease_s)}"
    client.fetch_json("POST", target)


def release(leases: Iterable[Lease], options: FleetOptions) -> None:
    """End leases; one that cannot be ended now ends by itself, which is logged."""
    for lease in leases:
        try:
            client = find_client(lease.url, options, "release")
            client.fetch_json("POST", f"/snapshot/release?id={quote(lease.id)}")
        except NodeError as error:
            _logger.warning("lease not released, it ends by itself %s", error)


def format_lease(lease_s: float) -> str:
    """Write the time of a lease as nsqd reads durations."""
    return f"{max(int(lease_s * 1000), 1)}ms"


class LeaseKeeper:
    """Renews leases from a thread, until it is closed; then releases them."""

    def __init__(self, leases: Iterable[Lease], options: FleetOptions) -> None:
        self._leases = list(leases)
        self._options = options
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Release the leases."""
        self._is_closed.set()
        self._thread.join()
        release(self._leases, self._options)

    def _run(self) -> None:
        while not self._is_closed.wait(self._options.lease_s / _RENEWALS_PER_LEASE):
            for lease in self._leases:
                try:
                    client = find_client(lease.url, self._options, "keeper")
                    renew(client, lease, self._options.lease_s)
                except NodeError as error:
                    # The tasks that need it fail with the same words.
                    _logger.warning("lease not renewed %s", error)
