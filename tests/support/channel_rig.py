"""ChannelRig: one channel with what it needs, and consumers that a test can count on."""

from pathlib import Path

from nsqd.broker.channel import Channel, ChannelSettings
from nsqd.broker.consumer import Consumer, Locality
from nsqd.broker.errors import NotInFlightError
from nsqd.broker.queue.backend import Backend, DiskBackend, DiskSettings, NullBackend
from nsqd.broker.queue.batch import Batch
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.queue.message_queue import MessageQueue
from tests.support.fake_scheduler import FakeScheduler
from tests.support.recording_sink import Delivery, RecordingSink

MSG_TIMEOUT_S = 60.0
MAX_MSG_TIMEOUT_S = 900.0


def disk_settings(
    data_path: Path, *, sync_every: int = 2500, is_trusted: bool = True
) -> DiskSettings:
    """Return settings with small segments, so that tests cross their borders.

    Args:
        is_trusted: appends are made at once; else a thread makes them at first, and after a write
            that took long, which a test has no power over.
    """
    return DiskSettings(
        data_path=data_path,
        max_bytes_per_file=4096,
        max_msg_size=1024 * 1024,
        sync_every=sync_every,
        sync_timeout_s=2.0,
        is_trusted=is_trusted,
    )


class Client:
    """A subscribed consumer and its sink."""

    def __init__(
        self,
        channel: Channel,
        *,
        msg_timeout_s: float = MSG_TIMEOUT_S,
        sample_rate: int = 0,
        locality: Locality = Locality.GLOBAL,
    ) -> None:
        self.channel = channel
        self.sink = RecordingSink()
        self.consumer = Consumer(
            self.sink, msg_timeout_s=msg_timeout_s, sample_rate=sample_rate, locality=locality
        )
        channel.subscribe(self.consumer)

    @property
    def bodies(self) -> list[bytes]:
        """What it was given, in order."""
        return self.sink.bodies

    @property
    def in_flight_count(self) -> int:
        """What it has not answered."""
        return len(self.consumer.in_flight)

    def take(self) -> list[Delivery]:
        """What it was given since the last time."""
        return self.sink.take()

    def ready(self, count: int) -> None:
        """RDY."""
        self.channel.set_ready(self.consumer, count)

    def finish(self, *ids: bytes) -> list[tuple[bytes, str]]:
        """FIN."""
        return self.channel.finish(self.consumer, ids)

    def requeue(self, message_id: bytes, delay_s: float = 0.0) -> None:
        """REQ; raise the reason why it fails, as `touch` does."""
        for _, reason in self.channel.requeue(self.consumer, [message_id], delay_s):
            raise NotInFlightError(reason)

    def touch(self, message_id: bytes) -> None:
        """TOUCH."""
        self.channel.touch(self.consumer, message_id)

    def stall(self) -> None:
        """Let its socket take no more."""
        self.consumer.is_writable = False

    def drain(self) -> None:
        """Let its socket take more again."""
        self.consumer.is_writable = True
        self.channel.wake(self.consumer)

    def leave(self) -> None:
        """Disconnect."""
        self.consumer.is_writable = False
        self.channel.unsubscribe(self.consumer)


class ChannelRig:
    """A channel on disk, or with `data_path` None in memory only."""

    def __init__(
        self,
        data_path: Path | None = None,
        *,
        mem_queue_size: int = 10_000,
        max_consumers: int = 0,
        max_msg_timeout_s: float = MAX_MSG_TIMEOUT_S,
        latency_quantiles: tuple[float, ...] = (),
        scheduler: FakeScheduler | None = None,
        sync_every: int = 2500,
    ) -> None:
        self.scheduler = scheduler or FakeScheduler()
        self.write_errors: list[OSError | None] = []
        self.ids = MessageIdFactory(1)
        self.backend: Backend = NullBackend()
        if data_path is not None:
            disk = disk_settings(data_path, sync_every=sync_every)
            self.backend = DiskBackend("t:c", disk, self.scheduler, self.write_errors.append)
        settings = ChannelSettings(
            max_msg_timeout_s=max_msg_timeout_s,
            max_consumers=max_consumers,
            latency_quantiles=latency_quantiles,
        )
        queue = MessageQueue(mem_queue_size, self.backend)
        self.channel = Channel("t", "c", queue, self.scheduler, settings)

    def client(
        self,
        ready: int = 0,
        *,
        msg_timeout_s: float = MSG_TIMEOUT_S,
        sample_rate: int = 0,
        locality: Locality = Locality.GLOBAL,
    ) -> Client:
        """Subscribe one more consumer."""
        client = Client(
            self.channel, msg_timeout_s=msg_timeout_s, sample_rate=sample_rate, locality=locality
        )
        if ready:
            client.ready(ready)
        return client

    def batch(self, *bodies: bytes, delay_s: float = 0.0) -> Batch:
        """Make what one publish makes."""
        now_ns = self.scheduler.wall_time_ns()
        prefix, first = self.ids.reserve(len(bodies), now_ns)
        return Batch(now_ns, prefix, first, bodies, delay_s)

    def put(self, *bodies: bytes, delay_s: float = 0.0) -> list[bytes]:
        """Publish to the channel and let it deliver; return the ids."""
        batch = self.batch(*bodies, delay_s=delay_s)
        self.channel.put(batch)
        self.scheduler.settle()
        return batch.ids(0, len(bodies))

    def settle(self) -> None:
        """Let everything happen that happens at this moment."""
        self.scheduler.settle()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.scheduler.advance(seconds)
