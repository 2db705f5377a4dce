"""Leases of snapshots: a snapshot is there as long as somebody renews its lease.

Tasks renew the lease under which they read. A driver that waits between reads has a `LeaseKeeper`,
which renews until it is closed and releases then. Without one a snapshot ends by itself, the time
of the option lease after its last task.
"""

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from spark_jobs.read.fleet.client import NodeClient, NodeError, find_client
from spark_jobs.read.fleet.options import FleetOptions

_RENEWALS_PER_LEASE = 3

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one snapshot of one node."""

    url: str
    id: str


# When this process renewed a lease last; bounded by what nsqd allows at a time.
_renewed_at: dict[Lease, float] = {}
_MAX_REMEMBERED = 4096


def keep_reading(client: NodeClient, lease: Lease, options: FleetOptions) -> None:
    """Renew a lease if it is time: at its first use in this process, and now and then.

    Raises:
        NodeError: the lease has ended, or the node cannot be reached.
    """
    now = time.monotonic()
    last = _renewed_at.get(lease)
    if last is not None and now - last < options.lease_s / _RENEWALS_PER_LEASE:
        return
    renew(client, lease, options)
    if len(_renewed_at) >= _MAX_REMEMBERED:
        _renewed_at.clear()
    _renewed_at[lease] = now


def renew(client: NodeClient, lease: Lease, options: FleetOptions) -> None:
    """Have a lease last as long as the option says, from now.

    Raises:
        NodeError: the lease has ended, or the node cannot be reached.
    """
    target = f"/snapshot/renew?id={quote(lease.id)}&lease={format_lease(options)}"
    client.fetch_json("POST", target)


def release(leases: Iterable[Lease], options: FleetOptions) -> None:
    """End leases; one that cannot be ended now ends by itself, which is logged."""
    for lease in leases:
        try:
            client = find_client(lease.url, options, "release")
            client.fetch_json("POST", f"/snapshot/release?id={quote(lease.id)}")
        except NodeError as error:
            _logger.warning("lease not released, it ends by itself %s", error)


def format_lease(options: FleetOptions) -> str:
    """Write the time of a lease as nsqd reads durations."""
    return f"{max(int(options.lease_s * 1000), 1)}ms"


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
                    renew(find_client(lease.url, self._options, "keeper"), lease, self._options)
                except NodeError as error:
                    # The tasks that need it fail with the same words.
                    _logger.warning("lease not renewed %s", error)
