"""`nsq pub`: publish arguments, lines of stdin, or files; say exactly what was published.

Input is published as it comes: each read becomes a few MPUBs, some reads ahead of their answers.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import signal
import struct
import sys
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from nsqd.cli import arguments, loop
from nsqd.cli.output import CliError, ExitCode, note, print_json, show_bytes
from nsqd.cli.progress import ProgressLine
from nsqd.cli.target import find_exit_code, find_target
from nsqd.client import Bounds, ConnectError, NsqError, Producer, PublishError
from nsqd.client.publish.producer import Spread

EXAMPLES: Final = {
    "pub": """examples:
  nsq pub orders 'one message' 'another one'
  zcat orders.gz | nsq pub orders
  nsq pub orders -n 1000 '{"number": {n}, "id": "{uuid}"}' --rate 100"""
}
_READ_BYTES: Final = 1 << 20
_READS_AHEAD: Final = 4
_MAX_PIECE_BYTES: Final = 64 << 20
_MAX_BURST_S: Final = 0.05
_SIZE: Final = struct.Struct(">i")


class Splitter:
    """Cut a stream into pieces at a delimiter; empty ones are skipped and counted."""

    def __init__(self, delimiter: bytes) -> None:
        """Start at the beginning of a piece."""
        self.empty_count = 0
        self._delimiter = delimiter
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces that end in this data.

        Raises:
            CliError: a piece is larger than any nsqd takes.
        """
        *pieces, self._rest = (self._rest + data).split(self._delimiter)
        if len(self._rest) > _MAX_PIECE_BYTES:
            raise CliError(f"a message of more than {show_bytes(_MAX_PIECE_BYTES)}")
        return self._skip_empty(pieces)

    def finish(self) -> list[bytes]:
        """Return the last piece, which needs no delimiter."""
        return self._skip_empty([self._rest] if self._rest else [])

    def _skip_empty(self, pieces: list[bytes]) -> list[bytes]:
        kept = [piece for piece in pieces if piece]
        self.empty_count += len(pieces) - len(kept)
        return kept


class Unframer:
    """Cut a stream of bodies that stand behind their sizes."""

    empty_count = 0

    def __init__(self) -> None:
        """Start at a size."""
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that end in this data.

        Raises:
            CliError: a size is impossible.
        """
        rest = self._rest + data
        bodies = []
        position = 0
        while len(rest) - position >= _SIZE.size:
            (size,) = _SIZE.unpack_from(rest, position)
            if not 0 < size <= _MAX_PIECE_BYTES:
                raise CliError(f"a frame of {size} bytes")
            end = position + _SIZE.size + size
            if end > len(rest):
                break
            bodies.append(rest[position + _SIZE.size : end])
            position = end
        self._rest = rest[position:]
        return bodies

    def finish(self) -> list[bytes]:
        """Check that the last frame was whole.

        Raises:
            CliError: it was not.
        """
        if self._rest:
            raise CliError("the input ends within a frame")
        return []


def open_envelope(line: bytes) -> bytes:
    """Return the body of a line of `nsq tail --json`.

    Raises:
        CliError: it is none.
    """
    try:
        fields = json.loads(line)
        if "body_base64" in fields:
            return base64.b64decode(fields["body_base64"], validate=True)
        return str(fields["body"]).encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError) as error:
        raise CliError("a line that is no message of nsq tail --json") from error


def fill_template(template: str, count: int) -> Iterator[bytes]:
    """Yield bodies with the number, the time and an id in them."""
    for number in range(1, count + 1):
        body = template.replace("{n}", str(number))
        if "{now}" in body:
            body = body.replace("{now}", str(time.time_ns()))
        if "{uuid}" in body:
            body = body.replace("{uuid}", str(uuid.uuid4()))
        yield body.encode()


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the arguments of `nsq pub`."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("bodies", nargs="*", metavar="BODY", help="without any: lines of stdin")
    what = parser.add_argument_group("input")
    what.add_argument("--delimiter", type=arguments.delimiter, default=b"\n", metavar="TEXT",
                      help=r"between messages (\n); escapes are \n \t \0 \xNN")  # fmt: skip
    what.add_argument("-0", dest="is_null", action="store_true", help="NUL between messages")
    what.add_argument("--whole", action="store_true", help="all of stdin is one message")
    what.add_argument("-f", "--file", action="append", default=[], help="each file is one message")
    what.add_argument(
        "--framed", action="store_true", help="int32 size and bytes, as tail --framed"
    )
    what.add_argument("--envelope", action="store_true", help="lines of tail --json")
    what.add_argument("-n", "--count", type=arguments.positive, metavar="N",
                      help="N messages of BODY, with {n}, {now} and {uuid} filled in")  # fmt: skip
    what.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N")
    sending = parser.add_argument_group("sending")
    sending.add_argument("--defer", type=arguments.duration, default=0.0, metavar="TIME",
                         help="deliver that much later")  # fmt: skip
    sending.add_argument("--rate", type=float, default=0.0, metavar="N", help="messages a second")
    sending.add_argument("--batch", type=arguments.positive, default=1000, metavar="N",
                         help="messages in a command (1000)")  # fmt: skip
    sending.add_argument("--batch-bytes", type=arguments.size, default=1 << 20, metavar="SIZE",
                         help="the same in bytes (1m)")  # fmt: skip
    sending.add_argument("--window", type=arguments.positive, default=4, metavar="N",
                         help="commands ahead of their answers")  # fmt: skip
    sending.add_argument("--retries", type=int, default=5, metavar="N",
                         help="after a lost connection or a refusal for now (5)")  # fmt: skip
    sending.add_argument("--to-all", action="store_true", help="every message to every nsqd")
    sending.add_argument("--tee", action="store_true", help="copy the messages to stdout")
    sending.add_argument("--dry-run", action="store_true", help="count, and publish nothing")
    arguments.add_common(parser)


def run(options: argparse.Namespace, _name: str) -> int:
    """Run `nsq pub`.

    Raises:
        CliError: not everything was published.
    """
    return loop.run(_publish(options))


async def _publish(options: argparse.Namespace) -> int:
    target = find_target(options)
    spread: Spread = "all" if options.to_all else "failover"
    job = Job(options)
    if options.dry_run:
        async for bodies in job.read():
            job.count(bodies)
        note(f"{job.published:,} would be published to {options.topic}", is_quiet=options.quiet)
        return ExitCode.DONE
    producer = Producer(
        *target.tcp_addresses,
        lookupd=target.lookupds,
        spread=spread,
        retries=options.retries,
        window=options.window,
        bounds=Bounds(max_batch_count=options.batch, max_batch_bytes=options.batch_bytes),
        timeout=max(options.timeout, 1.0),
        connect_timeout=options.timeout,
        user_agent="nsq-pub",
        **target.connection_options(),
    )
    try:
        progress = ProgressLine(lambda: job.show(producer), is_quiet=options.quiet)
        async with progress, producer:
            await job.publish(producer)
    except NsqError as error:
        raise _explain(error, job, has_connected=producer.stats().connects > 0) from error
    job.report(producer)
    return job.code


def _explain(error: NsqError, job: Job, *, has_connected: bool) -> CliError:
    cause = error.__cause__
    text = str(error)
    if isinstance(cause, ConnectError) and str(cause) not in text:
        text = f"{text} ({cause})"
    certainty = job.certainty() if has_connected else "nothing is published"
    return CliError(f"{text}\n{certainty}", find_exit_code(error))


class Job:
    """One run of `nsq pub`: the input, and how far it has been published."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Begin at the first message."""
        self.published = 0
        self.code = ExitCode.DONE
        self._options = options
        self._bytes = 0
        self._begun = 0
        self._empty = 0
        self._started = time.monotonic()
        self._interrupt: ExitCode | None = None
        self._paced = 0  # messages of the piece under way that are published, at a given rate
        self._due = 0.0  # when the next message may leave, at a given rate
        self._stop = asyncio.Event()

    def count(self, bodies: list[bytes]) -> None:
        """Count messages as published."""
        self.published += len(bodies)
        self._bytes += sum(map(len, bodies))

    async def publish(self, producer: Producer) -> None:
        """Publish the whole input, in order.

        Raises:
            NsqError: a part was not published; `certainty` tells which.
        """
        running = asyncio.get_running_loop()
        for number, code in (
            (signal.SIGINT, ExitCode.INTERRUPTED),
            (signal.SIGTERM, ExitCode.TERMINATED),
        ):
            running.add_signal_handler(number, self._interrupted, code)
        under_way: deque[tuple[asyncio.Task[int], list[bytes]]] = deque()
        try:
            async for bodies in self.read():
                self._begun += len(bodies)
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
        if self._interrupt is not None:
            self.code = self._interrupt

    def certainty(self) -> str:
        """Say which messages are published for certain, and which may be."""
        parts = []
        if self.published:
            parts.append(f"lines 1-{self.published} are published")
        if self._begun > self.published:
            parts.append(f"{self.published + 1}-{self._begun} may be")
        return ", ".join(parts) or "nothing is published"

    def show(self, producer: Producer) -> str:
        """Return how far it is."""
        rate = self.published / max(time.monotonic() - self._started, 1e-9)
        waiting, again = self._begun - self.published, producer.stats().resent
        text = f"{self.published:,} published to {self._options.topic}, {rate:,.0f}/s"
        return f"{text}, {waiting:,} not answered yet" + (
            f", {again:,} sent twice" if again else ""
        )

    def report(self, producer: Producer) -> None:
        """Print the summary."""
        options = self._options
        stats = producer.stats()
        lasted_s = time.monotonic() - self._started
        if options.json:
            print_json(
                {
                    "topic": options.topic,
                    "published": self.published,
                    "bytes": self._bytes,
                    "sent_twice": stats.resent,
                    "empty": self._empty,
                    "seconds": round(lasted_s, 3),
                }
            )
            return
        note(
            f"{self.published:,} published to {options.topic}, {show_bytes(self._bytes)},"
            f" {stats.resent:,} sent twice, {lasted_s:.1f} s",
            is_quiet=options.quiet,
        )

    async def read(self) -> AsyncIterator[list[bytes]]:
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
        cutter: Splitter | Unframer
        cutter = (
            Unframer()
            if options.framed
            else Splitter(b"\0" if options.is_null else options.delimiter)
        )
        opens: Callable[[bytes], bytes] | None = open_envelope if options.envelope else None
        async for data in read_stdin(self._stop):
            bodies = cutter.feed(data)
            yield list(map(opens, bodies)) if opens else bodies
        bodies = cutter.finish()
        self._empty = cutter.empty_count
        yield list(map(opens, bodies)) if opens else bodies

    def _interrupted(self, code: ExitCode) -> None:
        if self._interrupt is not None:
            os._exit(code)
        self._interrupt = code
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
            await producer.publish_many(options.topic, chunk)
            self._due += len(chunk) / options.rate
            sent += len(chunk)
            self._paced = sent
        return sent

    async def _confirm(self, under_way: deque[tuple[asyncio.Task[int], list[bytes]]]) -> None:
        task, bodies = under_way[0]
        try:
            sent = await task
        except PublishError as error:
            self.published += error.confirmed_count
            raise
        under_way.popleft()
        self._paced = 0
        self.count(bodies[:sent])


async def read_stdin(stop: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the bytes of stdin as they come, until its end or a signal."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while True:
            reading = asyncio.ensure_future(loop.in_thread(os.read, 0, _READ_BYTES))
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
        return Path(name).read_bytes()
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
