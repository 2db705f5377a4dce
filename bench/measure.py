"""How a case is measured on one daemon: the load applied, what came of it, what it cost.

Each `measure_*` gets a case and a daemon that answers, works on a topic of its own, and returns
a `Measurement`. Rates count messages that were answered (publishing) or finished (consuming).
What is not measured, filling a queue for instance, happens before the workers are let go.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from bench import wire
from bench.consumers import ConsumePlan, consume
from bench.crowd import CrowdPlan, hold_crowd
from bench.daemon_process import Daemon, DaemonError
from bench.latency import PacedPlan, consume_stamped, publish_paced
from bench.load import LoadResult
from bench.publishers import (
    PostPlan,
    PublishPlan,
    post,
    publish,
    publish_in_bursts,
    publish_synchronously,
)
from bench.wire import LoadError
from bench.worker_process import Job, WorkerGroup

CHANNEL: Final = "bench"
FILL_SECONDS: Final = 120.0
SETTLE_TIMEOUT_S: Final = 60.0
# On top of a worker's own limit, before the group is given up.
GRACE_S: Final = 60.0
WARM_UP_MESSAGES: Final = 200
LATENCY_RATE_PER_S: Final = 2000

_topic_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Connections that do nothing while the load runs."""

    idle: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure; `batch` is the messages of one MPUB, 0 means PUB."""

    name: str
    measure: "Callable[[Case, Daemon], Measurement]"
    messages: int
    seconds: float = 10.0
    body_bytes: int = 200
    # Sizes from a half to three halves of that.
    is_mixed: bool = False
    batch: int = 200
    window: int = 8
    connections: int = 2
    channels: int = 1
    rdy: int = 2500
    crowd: Crowd | None = None
    flags: tuple[str, ...] = ()
    primary: str = "messages_per_s"

    @property
    def scenario(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics by name, and remarks a reader of the numbers must know."""

    metrics: dict[str, float]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Applied:
    """The results of the workers, in order, and the daemon's CPU time meanwhile."""

    results: list[LoadResult]
    daemon_cpu_s: float | None

    @property
    def seconds(self) -> float:
        started_ns = min(result.started_ns for result in self.results)
        return (max(result.ended_ns for result in self.results) - started_ns) / 1e9

    def metrics(self, messages: int, body_bytes: int) -> dict[str, float]:
        """The metrics every case has, for this many messages."""
        rate = messages / self.seconds
        client_cpu_s = sum(result.cpu_s for result in self.results)
        metrics = {
            "messages": float(messages),
            "seconds": self.seconds,
            "messages_per_s": rate,
            "megabytes_per_s": rate * body_bytes / 1e6,
            "client_cpu_us_per_message": client_cpu_s * 1e6 / messages,
        }
        if self.daemon_cpu_s is not None:
            metrics["cpu_us_per_message"] = self.daemon_cpu_s * 1e6 / messages
        return metrics


def measure_publish(case: Case, daemon: Daemon) -> Measurement:
    """Publish with a window of unanswered publishes on each connection."""
    work = publish_in_bursts if case.connections == 1 and case.window > 1 else publish
    with (
        _topic(case, daemon, channels=1 if case.crowd else 0) as topic,
        _crowd(case, daemon, topic),
    ):
        applied = _apply(daemon, [partial(work, _publish_plan(case, daemon, topic))], case)
        published = applied.results[0].messages
        notes = _check_published(case, daemon, topic, published)
    return Measurement(applied.metrics(published, case.body_bytes), notes)


def measure_sync(case: Case, daemon: Daemon) -> Measurement:
    """Publish one at a time on one connection, each timed until its OK."""
    with _topic(case, daemon, channels=0) as topic:
        job = partial(publish_synchronously, _publish_plan(case, daemon, topic))
        applied = _apply(daemon, [job], case)
        published = applied.results[0].messages
        notes = _check_published(case, daemon, topic, published)
    metrics = applied.metrics(published, case.body_bytes)
    return Measurement(metrics | _latency_metrics(applied.results[0]), notes)


def measure_http(case: Case, daemon: Daemon) -> Measurement:
    """POST /pub on keep-alive connections."""
    with _topic(case, daemon, channels=0) as topic:
        request = wire.post_request(daemon.http[0], topic, _body(case))
        plan = PostPlan(daemon.http, request, case.connections, case.messages, case.seconds)
        applied = _apply(daemon, [partial(post, plan)], case)
        published = applied.results[0].messages
        notes = _check_published(case, daemon, topic, published)
    return Measurement(applied.metrics(published, case.body_bytes), notes)


def measure_sub(case: Case, daemon: Daemon) -> Measurement:
    """Consume and finish a channel that was filled before."""
    with _topic(case, daemon, channels=case.channels) as topic:
        _fill(case, daemon, topic)
        plan = _consume_plan(case, daemon, topic)
        applied = _apply(daemon, [partial(consume, plan)], case)
    consumed = applied.results[0].messages
    notes = _missing(consumed, plan.messages)
    return Measurement(applied.metrics(consumed, case.body_bytes), notes)


def measure_pubsub(case: Case, daemon: Daemon) -> Measurement:
    """Publish and consume at once; a message counts when every channel has finished it."""
    with _topic(case, daemon, case.channels) as topic, _crowd(case, daemon, topic):
        publish_plan = _publish_plan(_with_spare(case), daemon, topic)
        consume_plan = _consume_plan(case, daemon, topic)
        jobs: list[Job] = [partial(consume, consume_plan), partial(publish, publish_plan)]
        applied = _apply(daemon, jobs, case)
    consumer, publisher = applied.results
    metrics = applied.metrics(consumer.messages // case.channels, case.body_bytes)
    publishing_s = (publisher.ended_ns - publisher.started_ns) / 1e9
    metrics["published_per_s"] = publisher.messages / publishing_s
    return Measurement(metrics, _missing(consumer.messages, consume_plan.messages))


def measure_latency(case: Case, daemon: Daemon) -> Measurement:
    """Publish at a modest pace and note how old each message is when it arrives."""
    with _topic(case, daemon, channels=1) as topic:
        count = min(case.messages, int(case.seconds * LATENCY_RATE_PER_S))
        plan = PacedPlan(
            address=daemon.tcp,
            topic=topic,
            channel=_channels(case)[0],
            body_bytes=case.body_bytes,
            rate_per_s=LATENCY_RATE_PER_S,
            messages=count + WARM_UP_MESSAGES,
            warm_up=WARM_UP_MESSAGES,
            timeout_s=case.seconds * 2 + GRACE_S / 2,
        )
        applied = _apply(
            daemon, [partial(consume_stamped, plan), partial(publish_paced, plan)], case
        )
    metrics = applied.metrics(plan.messages, case.body_bytes)
    return Measurement(metrics | _latency_metrics(applied.results[0]))


def measure_memory(case: Case, daemon: Daemon) -> Measurement:
    """Publish and leave it there; how much has the daemon grown?"""
    with _topic(case, daemon, channels=0) as topic, _topic(case, daemon, channels=0) as other:
        # What the first publish alone brings into memory is not the price of a message.
        _apply(daemon, [partial(publish, _publish_plan(case, daemon, other, batches=1))], case)
        before = daemon.rss_bytes()
        applied = _apply(daemon, [partial(publish, _publish_plan(case, daemon, topic))], case)
        after = daemon.rss_bytes()
        published = applied.results[0].messages
        notes = _check_published(case, daemon, topic, published)
    if before is None or after is None:
        raise DaemonError("its memory cannot be seen: not a process of this machine")
    metrics = applied.metrics(published, case.body_bytes)
    metrics["rss_bytes_per_message"] = (after - before) / published
    return Measurement(metrics, notes)


def _apply(daemon: Daemon, jobs: Sequence[Job], case: Case) -> _Applied:
    with WorkerGroup(jobs) as group:
        group.wait_ready()
        before = daemon.cpu_s()
        group.go()
        results = group.results(case.seconds + GRACE_S)
        after = daemon.cpu_s()
    cpu_s = None if before is None or after is None else after - before
    return _Applied(results, cpu_s)


def _latency_metrics(result: LoadResult) -> dict[str, float]:
    return {f"{name}_ms": value for name, value in result.latency_ms.items()}


def _body(case: Case) -> bytes:
    return b"x" * case.body_bytes


def _batch(case: Case) -> int:
    return wire.mpub_batch(case.body_bytes, case.batch) if case.batch else 1


def _with_spare(case: Case) -> Case:
    """The case with more messages than will be consumed.

    A daemon may sit on its last messages for as long as output_buffer_timeout says; a run that
    waits for them measures that timeout. So the queue never runs dry while the clock runs.
    """
    return replace(case, messages=case.messages + spare_messages(case))


def spare_messages(case: Case) -> int:
    """Twice what the consumers of one channel may hold."""
    return 2 * case.rdy * case.connections


def _channels(case: Case) -> tuple[str, ...]:
    return tuple(f"{CHANNEL}_{number}" for number in range(case.channels))


def _publish_plan(case: Case, daemon: Daemon, topic: str, batches: int = 0) -> PublishPlan:
    """The case's publishing, or `batches` of it."""
    batch, body = _batch(case), _body(case)
    pub = wire.pub_command(topic, body)
    mpub = wire.mpub_command(topic, body, batch, is_mixed=case.is_mixed)
    return PublishPlan(
        address=daemon.tcp,
        unit=mpub if case.batch else pub,
        unit_messages=batch,
        window=case.window,
        connections=1 if batches else case.connections,
        messages=batches * batch or case.messages,
        seconds=case.seconds,
    )


def _consume_plan(case: Case, daemon: Daemon, topic: str) -> ConsumePlan:
    return ConsumePlan(
        address=daemon.tcp,
        topic=topic,
        channels=_channels(case),
        connections=case.connections,
        rdy=case.rdy,
        body_bytes=case.body_bytes,
        messages=case.messages * case.channels,
        seconds=case.seconds,
    )


@contextlib.contextmanager
def _topic(case: Case, daemon: Daemon, channels: int) -> Iterator[str]:
    """A new topic, with that many of the case's channels, deleted afterwards."""
    topic = f"bench_{os.getpid()}_{next(_topic_numbers)}"
    daemon.request("POST", "/topic/create", topic=topic)
    for channel in _channels(case)[:channels]:
        daemon.request("POST", "/channel/create", topic=topic, channel=channel)
    try:
        yield topic
    finally:
        # A daemon that has just failed cannot delete either; the first error is the one to see.
        with contextlib.suppress(DaemonError):
            daemon.request("POST", "/topic/delete", topic=topic)


@contextlib.contextmanager
def _crowd(case: Case, daemon: Daemon, topic: str) -> Iterator[None]:
    """The case's crowd, connected; nothing if it has none."""
    if case.crowd is None:
        yield
        return
    idle, consumers = case.crowd.idle, case.crowd.consumers
    plan = CrowdPlan(daemon.tcp, topic, _channels(case)[0], idle, consumers)
    with WorkerGroup([partial(hold_crowd, plan)]) as group:
        group.wait_ready()
        yield


def _fill(case: Case, daemon: Daemon, topic: str) -> None:
    """Publish the case's messages and some more; wait until its channels hold them all."""
    plan = replace(_publish_plan(_with_spare(case), daemon, topic), seconds=FILL_SECONDS)
    with WorkerGroup([partial(publish, plan)]) as group:
        group.wait_ready()
        group.go()
        filled = group.results(FILL_SECONDS + GRACE_S)[0].messages
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        depths = [channel["depth"] for channel in daemon.topic_stats(topic)["channels"]]
        if all(depth == filled for depth in depths):
            return
        if time.monotonic() > deadline:
            raise LoadError(f"channels hold {depths} messages instead of {filled}")
        time.sleep(0.05)


def _check_published(case: Case, daemon: Daemon, topic: str, published: int) -> list[str]:
    """Hold the daemon's own count against ours, and say if memory was not enough.

    Raises:
        LoadError: the daemon knows of another number of messages.
    """
    stats = daemon.topic_stats(topic)
    if stats["message_count"] != published:
        raise LoadError(f"{published} publishes answered, {stats['message_count']} counted")
    backend_depth = stats["backend_depth"] + sum(c["backend_depth"] for c in stats["channels"])
    if backend_depth and "--mem-queue-size=0" not in case.flags:
        return [f"{backend_depth:,} messages went to disk"]
    return []


def _missing(consumed: int, wanted: int) -> list[str]:
    if consumed >= wanted:
        return []
    return [f"the time was up after {consumed:,} of {wanted:,} messages"]
