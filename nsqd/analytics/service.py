"""Analytics: snapshots, leases and the manifest of one node, as the daemon makes them."""

from functools import partial
from pathlib import Path

from diskqueue.identity import make_identity
from diskqueue.layout import find_checked_name
from nsqd.analytics.leases import Lease, LeaseError, Leases
from nsqd.analytics.manifest import Manifest
from nsqd.analytics.segments import OpenFile, SegmentBook, open_checksums
from nsqd.analytics.snapshot import Snapshots
from nsqd.analytics.threads import Threads
from nsqd.broker.broker import Broker
from nsqd.broker.scheduler import Scheduler
from nsqd.http.file_body import FileBody
from nsqd.runtime.turns import Turns


class Analytics:
    """All that the API needs to serve queues for analysis."""

    def __init__(
        self,
        broker: Broker,
        scheduler: Scheduler,
        turns: Turns,
        data_path: Path,
        *,
        max_lease_count: int,
        max_lease_bytes: int,
    ) -> None:
        # Tells two nodes apart that have the same id, since one has a copy of the other's data.
        self.run_id = make_identity()
        self._threads = Threads()
        book = SegmentBook(self._threads)
        self.leases = Leases(scheduler, max_count=max_lease_count, max_bytes=max_lease_bytes)
        self.snapshots = Snapshots(
            broker, scheduler, self.leases, book, self._threads, turns, data_path
        )
        self.manifest = Manifest(broker, scheduler, book, self._threads, turns)

    async def open(self, lease: Lease, file_name: str) -> OpenFile:
        """Open a file of a lease: one that its snapshot listed, or the checksums of a segment.

        Raises:
            LeaseError: the snapshot has no such file.
            OSError: the lease has ended, or the file cannot be opened.
        """
        checked_name = find_checked_name(file_name)
        file = lease.files.get(checked_name or file_name)
        if file is None:
            raise LeaseError(404, "SEGMENT_NOT_FOUND")
        if checked_name is None:
            return await self._threads.run(
                lambda: OpenFile(FileBody(file.open(), file.offset, file.size_bytes))
            )
        if file.open_checksums is None:
            raise LeaseError(404, "SEGMENT_NOT_FOUND")
        return await self._threads.run(partial(open_checksums, file.open_checksums))

    def close(self) -> None:
        """End all leases and wait for the work under way."""
        self._threads.close()
        self.leases.close()
