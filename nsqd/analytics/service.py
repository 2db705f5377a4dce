"""Analytics: snapshots, leases and the manifest of one node, as the daemon makes them."""

from pathlib import Path

from nsqd.analytics.leases import LeasedFile, Leases
from nsqd.analytics.manifest import Manifest
from nsqd.analytics.segments import SegmentBook
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
        self._threads = Threads()
        book = SegmentBook(self._threads)
        self.leases = Leases(scheduler, max_count=max_lease_count, max_bytes=max_lease_bytes)
        self.snapshots = Snapshots(
            broker, scheduler, self.leases, book, self._threads, turns, data_path
        )
        self.manifest = Manifest(broker, book, self._threads, turns)

    async def open(self, file: LeasedFile) -> FileBody:
        """Open a leased file.

        Raises:
            OSError: the lease has ended, or the file cannot be opened.
        """
        return await self._threads.run(lambda: FileBody(file.open(), file.offset, file.size_bytes))

    def close(self) -> None:
        """End all leases and wait for the work under way."""
        self._threads.close()
        self.leases.close()
