"""`to_nsq`: Go's tool, by the code of `nsq pub`: every address gets every message.

It differs in one thing: a last message without a delimiter is whole, where Go cuts its last byte. A
newline at the very end is dropped if another delimiter was given, as Go's own example has one.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nsqd.cli import loop
from nsqd.cli.go.options import VERSION, GoNsqConfig, UsageError, parse, read_go_nsq, run_tool
from nsqd.cli.messages.job import read_stdin
from nsqd.cli.messages.pieces import Splitter
from nsqd.cli.output import CliError
from nsqd.client import NsqError, Producer
from nsqd.config.flags import flag
from nsqd.config.kinds import BOOL, INT, TEXT, TEXTS
from nsqd.protocol.names import is_valid_topic_name

PROGRAM = "to_nsq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of to_nsq."""

    delimiter: str = flag("delimiter", "\n", TEXT, "character to split input from stdin")
    nsqd_tcp_address: tuple[str, ...] = flag(
        "nsqd-tcp-address", (), TEXTS, "destination nsqd TCP address (repeatable)"
    )
    producer_opt: tuple[str, ...] = flag(
        "producer-opt", (), TEXTS, "option of go-nsq's Config, key,value (repeatable)"
    )
    rate: int = flag("rate", 0, INT, "Throttle messages to n/second. 0 to disable")
    topic: str = flag("topic", "", TEXT, "NSQ topic to publish to")
    version: bool = flag("version", False, BOOL, "print version string")


def main(argv: Sequence[str] | None = None) -> int:
    """Run to_nsq and return its exit code."""
    return run_tool(lambda: _run(parse(Options, argv, PROGRAM)))


def _run(options: Options) -> int:
    if options.version:
        print(f"{PROGRAM} {VERSION}")
        return 0
    config = read_go_nsq(options.producer_opt, "producer-opt")
    if not options.topic:
        raise UsageError("--topic required")
    if len(options.delimiter.encode()) != 1:
        raise UsageError("--delimiter must be a single byte")
    if not options.nsqd_tcp_address:
        raise UsageError("--nsqd-tcp-address required")
    if not is_valid_topic_name(options.topic):
        raise UsageError("invalid topic name")
    try:
        return loop.run(_publish(options, config))
    except (NsqError, CliError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error


async def _publish(options: Options, config: GoNsqConfig) -> int:
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for ending in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(ending, stop.set)
    if options.rate > 0:
        print(f"Throttling messages rate to max:{options.rate}/second", file=sys.stderr)
    producer = Producer(
        *options.nsqd_tcp_address,
        spread="all",
        retries=0,
        timeout=5.0,
        **{"user_agent": f"{PROGRAM}/{VERSION[1:]}", **config.connection_options()},
    )
    delimiter = options.delimiter.encode()
    splitter = Splitter(delimiter)
    pace = Pace(options.rate)
    held = b""  # A newline at the end of the bytes read: dropped if nothing follows.
    async with producer:
        async for data in read_stdin(stop):
            data = held + data
            held = b"\n" if data.endswith(b"\n") and delimiter != b"\n" else b""
            await _send(producer, options.topic, pace, splitter.feed(data.removesuffix(held)))
        await _send(producer, options.topic, pace, splitter.finish())
    return 0


async def _send(producer: Producer, topic: str, pace: Pace, bodies: list[bytes]) -> None:
    if not pace.is_limited:
        await producer.publish_many(topic, bodies)
        return
    for body in bodies:
        await pace.wait()
        await producer.publish(topic, body)


# No timer is as late as this, but on a machine that is busy.
_PAUSE_S: Final = 0.05


class Pace:
    """When the next message may leave, however the input comes: by the line or by the megabyte."""

    def __init__(self, rate: int) -> None:
        """Args: rate: messages a second; 0 or less for any number."""
        self.is_limited = rate > 0
        self._step_s = 1 / rate if rate > 0 else 0.0
        self._due = 0.0

    async def wait(self) -> None:
        """Wait for the turn of one message. Turns that passed without input are not made up for."""
        running = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._due - running.time()))
        # A timer that is a little late does not lower the rate; a pause begins anew.
        is_pause = running.time() - self._due >= max(self._step_s, _PAUSE_S)
        self._due = (running.time() if is_pause else self._due) + self._step_s
