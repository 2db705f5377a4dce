"""A broker that keeps history, and what its archives hold."""

from dataclasses import replace
from pathlib import Path

from diskqueue import DiskQueue, envelope, layout
from diskqueue.__main__ import main as diskqueue_main
from diskqueue.envelope import Envelope
from nsqd.broker.archive.archive import ArchiveStats
from nsqd.broker.archive.retention import Retention
from nsqd.broker.broker import Broker, BrokerSettings
from nsqd.broker.channel import ChannelSettings
from nsqd.broker.queue.ids import MessageIdFactory
from tests.support.broker_rig import BrokerRig
from tests.support.channel_rig import disk_settings

SYNC_S = 2.0


class ArchiveRig(BrokerRig):
    """A broker that keeps history."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 2**30,
        max_age_s: float = 0.0,
        mem_queue_size: int = 10_000,
        sync_every: int = 2500,
        has_checksums: bool = False,
        max_bytes_per_file: int | None = None,
        is_disk_trusted: bool = True,
    ) -> None:
        super().__init__(path)
        disk = disk_settings(path, sync_every=sync_every, is_trusted=is_disk_trusted)
        if max_bytes_per_file is not None:
            disk = replace(disk, max_bytes_per_file=max_bytes_per_file)
        settings = BrokerSettings(
            mem_queue_size=mem_queue_size,
            disk=replace(disk, has_checksums=has_checksums),
            channel=ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0),
            retention=Retention(max_bytes, max_age_s),
        )
        self.broker = Broker(settings, self.scheduler, MessageIdFactory(1))

    def stats(self, topic: str = "t") -> ArchiveStats:
        archive = self.topic(topic).archive
        assert archive is not None
        return archive.stats()

    @property
    def health(self) -> str:
        assert self.broker.archives is not None
        return self.broker.archives.health

    @property
    def dropped_count(self) -> int:
        assert self.broker.archives is not None
        return self.broker.archives.dropped_count

    def messages(self, topic: str = "t") -> list[Envelope]:
        """What the files of a topic's archive hold at this moment."""
        directory = str(self.data_path / "archive")
        assert diskqueue_main(["check", directory]) == 0
        queue = DiskQueue(directory, topic)
        found = []
        while (batch := queue.read(1000, 2**20)) is not None:
            found += [envelope.decode(payload) for payload in batch]
        return found

    def bodies(self, topic: str = "t") -> list[bytes]:
        return [message.body for message in self.messages(topic)]

    def files(self, topic: str = "t") -> dict[int, int]:
        return layout.find_queue_files(str(self.data_path / "archive"), topic).segments
