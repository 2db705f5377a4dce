"""Job: the input of `nsq pub` through a Producer, which copes with whatever nsqd does.

Input is published as it comes: each read becomes a few MPUBs, some reads ahead of their answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from nsqd.cli import loop, signals
from nsqd.cli.messages.express_pub import READ_BYTES
from nsqd.cli.messages.pieces import Splitter, Unframer, fill_template, open_envelope
from nsqd.cli.messages.tally import Tally
from nsqd.cli.output import CliError, ExitCode
from nsqd.cli.progress import ProgressLine
from nsqd.cli.target import Target
from nsqd.client import Bounds, Producer, PublishError
from nsqd.client.publish.producer import Spread

_READS_AHEAD: Final = 4
_MAX_BURST_S: Final = 0.05


class Job:
    """One run of `nsq pub`: the input, and how far it has been published."""

    def __init__(
        self, options: argparse.Namespace, tally: Tally, cutter: Splitter | Unframer
    ) -> None:
        """Begin at the first message; must be made on the event loop."""
        self._options = options
        self._tally = tally
        self._cutter = cutter
        # What the express has left: messages, and whether there is more input behind them.
        self._rest: Sequence[list[bytes]] = ()
        self._has_input = True
        self._resent_before = tally.resent
        self._repeats = signals.Repeats()
        self._due = 0.0  # when the next message may leave, at a given rate
        self._stop = asyncio.Event()

    def go_on_with(self, rest: Sequence[list[bytes]], *, has_input: bool) -> None:
        """Begin with messages that were read and are not known to be published."""
        self._rest = rest
        self._has_input = has_input

    async def run(self, target: Target) -> None:
        """Publish the whole input, in order.

        Raises:
            NsqError: a part was not published; the tally tells which.
        """
        options = self._options
        spread: Spread = "all" if options.to_all else "failover"
        producer = Producer(
            *target.tcp_addresses,
            lookupd=target.lookupds,
            spread=spread,
            # The express may have sent them once.
            retries=options.retries - bool(self._resent_before),
            window=options.window,
            bounds=Bounds(max_batch_count=options.batch, max_batch_bytes=options.batch_bytes),
            timeout=max(options.timeout, 1.0),
            connect_timeout=options.timeout,
            user_agent="nsq-pub",
            **target.connection_options(),
        )

        def show() -> str:
            self._note_stats(producer)
            return self._tally.show()

        running = asyncio.get_running_loop()
        for number in signals.ending():
            running.add_signal_handler(number, self._interrupted, signals.CODES[number])
        if self._tally.interrupt is not None:
            return
        try:
            async with ProgressLine(show, is_quiet=options.quiet), producer:
                await self._publish(producer)
        finally:
            self._note_stats(producer)

    async def count(self) -> None:
        """Count the messages of the input, and publish nothing."""
        async for bodies in self._read():
            self._tally.count(bodies)

    def _note_stats(self, producer: Producer) -> None:
        stats = producer.stats()
        self._tally.resent = self._resent_before + stats.resent
        self._tally.nodes.update(stats.nodes)
        self._tally.has_connected |= stats.connects > 0

    async def _publish(self, producer: Producer) -> None:
        under_way: deque[tuple[asyncio.Task[int], list[bytes]]] = deque()
        try:
            async for bodies in self._read():
                self._tally.begun += len(bodies)
                task = asyncio.create_task(self._send(producer, bodies))
                under_way.append((task, bodies))
                # At a given rate the order is that of the input, so nothing is ahead.
                ahead = 0 if self._options.rate else _READS_AHEAD
                while len(under_way) > ahead or (under_way and under_way[0][0].done()):
                    await self._confirm(under_way)
            while under_way:
                await self._confirm(under_way)
        finally:
            for task, _ in under_way:
                task.cancel()
            await asyncio.gather(*(task for task, _ in under_way), return_exceptions=True)

    async def _read(self) -> AsyncIterator[list[bytes]]:
        """Yield the messages of the input, as they come, without those to skip."""
        skip = self._options.skip
        async for bodies in self._read_all():
            if skip:
                bodies, skip = bodies[skip:], max(0, skip - len(bodies))
            if bodies and self._options.tee:
                sys.stdout.buffer.write(b"\n".join(bodies) + b"\n")
                sys.stdout.buffer.flush()
            if bodies:
                yield bodies
            if self._stop.is_set():
                return

    async def _read_all(self) -> AsyncIterator[list[bytes]]:
        options = self._options
        for chunk in self._rest:
            yield chunk
        if not self._has_input:
            return
        if options.count is not None:
            template = options.bodies[0] if options.bodies else "{n}"
            for chunk in _in_chunks(fill_template(template, options.count), options):
                yield chunk
        elif options.bodies:
            yield [body.encode("utf-8", "surrogateescape") for body in options.bodies]
        elif options.file:
            for name in options.file:
                yield [_read_file(name)]
        else:
            async for chunk in self._read_stdin():
                yield chunk

    async def _read_stdin(self) -> AsyncIterator[list[bytes]]:
        options = self._options
        if options.whole:
            pieces = [data async for data in read_stdin(self._stop)]
            yield [b"".join(pieces)]
            return
        cutter = self._cutter
        opens: Callable[[bytes], bytes] | None = open_envelope if options.envelope else None
        async for data in read_stdin(self._stop):
            bodies = cutter.feed(data)
            yield list(map(opens, bodies)) if opens else bodies
        bodies = cutter.finish()
        self._tally.empty = cutter.empty_count
        yield list(map(opens, bodies)) if opens else bodies

    def _interrupted(self, code: ExitCode) -> None:
        if self._repeats.is_second():
            os._exit(code)
        self._tally.interrupt = code
        self._stop.set()

    async def _send(self, producer: Producer, bodies: list[bytes]) -> int:
        options = self._options
        if options.defer:
            defer = timedelta(seconds=options.defer)
            await asyncio.gather(
                *(producer.publish(options.topic, body, defer=defer) for body in bodies)
            )
            return len(bodies)
        if options.rate:
            return await self._send_slowly(producer, bodies)
        return await producer.publish_many(options.topic, bodies)

    async def _send_slowly(self, producer: Producer, bodies: list[bytes]) -> int:
        """Publish at the rate that was asked for; return how many, which a signal may cut short."""
        options = self._options
        running = asyncio.get_running_loop()
        sent = 0
        while sent < len(bodies) and not self._stop.is_set():
            # A pause of the input earns no burst.
            self._due = max(self._due, running.time() - _MAX_BURST_S)
            wait_s = self._due - running.time()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stop.wait()
                continue
            count = 1 + int(-wait_s * options.rate)
            chunk = bodies[sent : sent + count]
            try:
                await producer.publish_many(options.topic, chunk)
            except PublishError as error:
                error.confirmed_count += sent
                raise
            self._due += len(chunk) / options.rate
            sent += len(chunk)
        return sent

    async def _confirm(self, under_way: deque[tuple[asyncio.Task[int], list[bytes]]]) -> None:
        task, bodies = under_way[0]
        try:
            sent = await task
        except PublishError as error:
            self._tally.published += error.confirmed_count
            raise
        under_way.popleft()
        self._tally.count(bodies[:sent])


async def read_stdin(stop: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the bytes of stdin as they come, until its end or a signal."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while True:
            reading = asyncio.ensure_future(loop.in_thread(os.read, 0, READ_BYTES))
            both: set[asyncio.Future[Any]] = {reading, stopping}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                return
            if not (data := reading.result()):
                return
            yield data
    finally:
        stopping.cancel()


def _read_file(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise CliError(f"{name}: {error.strerror}") from error


def _in_chunks(bodies: Iterable[bytes], options: Any) -> Iterator[list[bytes]]:
    # At a slow rate a chunk is small, so that a signal need not wait for a thousand messages.
    size = max(1, min(options.batch, int(options.rate))) if options.rate else options.batch
    chunk: list[bytes] = []
    for body in bodies:
        chunk.append(body)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
