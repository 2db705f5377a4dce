"""BrokerRig: a broker on a directory, its fake time, and what it announced."""

from pathlib import Path

from nsqd.broker.broker import Broker, BrokerSettings
from nsqd.broker.channel import Channel, ChannelSettings
from nsqd.broker.queue.ids import MessageIdFactory
from nsqd.broker.topic import Topic
from nsqd.config.limits import NO_LIMITS, Limits
from tests.support.channel_rig import Client, disk_settings
from tests.support.fake_scheduler import FakeScheduler


class BrokerRig:
    """A broker that can be closed and made again on the same directory."""

    def __init__(
        self,
        data_path: Path,
        *,
        mem_queue_size: int = 10_000,
        limits: Limits = NO_LIMITS,
        sync_every: int = 2500,
        wall_time_ns: int = 1_700_000_000_000_000_000,
        is_disk_trusted: bool = True,
    ) -> None:
        self.data_path = data_path
        self.scheduler = FakeScheduler(wall_time_ns=wall_time_ns)
        self.announcements: list[tuple[str, str | None]] = []
        settings = BrokerSettings(
            mem_queue_size=mem_queue_size,
            disk=disk_settings(data_path, sync_every=sync_every, is_trusted=is_disk_trusted),
            channel=ChannelSettings(max_msg_timeout_s=900.0, max_consumers=0),
            limits=limits,
        )
        self.broker = Broker(settings, self.scheduler, MessageIdFactory(1))
        self.broker.listeners.append(self._listen)

    def _listen(self, topic: Topic, channel: Channel | None) -> None:
        self.announcements.append((topic.name, None if channel is None else channel.name))

    def topic(self, name: str = "t") -> Topic:
        """Return the topic, made if need be."""
        return self.broker.ensure_topic(name)

    def channel(self, name: str = "c", topic: str = "t") -> Channel:
        """Return the channel, made if need be."""
        return self.broker.ensure_topic(topic).ensure_channel(name)

    def client(self, channel: str = "c", topic: str = "t", *, ready: int = 100_000) -> Client:
        """Subscribe a consumer."""
        client = Client(self.channel(channel, topic))
        client.ready(ready)
        self.scheduler.settle()
        return client

    def publish(self, *bodies: bytes, topic: str = "t", delay_s: float = 0.0) -> None:
        """Publish and let everything happen that follows; raise the error of the receipt."""
        receipt = self.broker.ensure_topic(topic).publish(bodies, delay_s=delay_s)
        self.scheduler.settle()
        if receipt is not None and receipt.error is not None:
            raise receipt.error

    def settle(self) -> None:
        """Let everything happen that happens at this moment."""
        self.scheduler.settle()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.scheduler.advance(seconds)
