"""ExpressTail: show messages of one nsqd over a plain connection, without an event loop.

What is out of the ordinary (an nsqd that refuses, closes or cannot be reached) ends the express,
and `Tail`, whose consumers know what to do, goes on. A message is finished after it was printed.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from collections import deque
from typing import Final

from nsqd.cli import signals
from nsqd.cli.messages.plain import (
    TICK_S,
    Interrupts,
    LostError,
    PlainConnection,
    RefusedError,
    connect,
)
from nsqd.cli.output import ExitCode
from nsqd.cli.progress import StatusLine
from nsqd.client.address import Address
from nsqd.protocol import client_wire as wire

# A pipe that `select` calls writable takes so many bytes without blocking (PIPE_BUF of Linux).
_PIPE_BYTES: Final = 4096
_FILE_BYTES: Final = 1 << 30
_MSG_TIMEOUT_MS: Final = 60_000
_FAREWELL_S: Final = 1.0
# Answers that came too late: nsqd sends the message again, and the connection lives on.
_LATE_ERRORS: Final = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


class _Lines:
    """Messages that arrived together, as text, until all of it is printed."""

    __slots__ = ("_size", "ids", "text", "touch_due")

    def __init__(self, ids: list[bytes], text: bytes, touch_due: float) -> None:
        self.ids = ids
        self.text = memoryview(text)
        self.touch_due = touch_due
        self._size = len(text)

    @property
    def is_begun(self) -> bool:
        """Whether a part is printed."""
        return len(self.text) < self._size


class ExpressTail:
    """One connection, one topic and one output."""

    def __init__(
        self,
        address: Address,
        topic: str,
        channel: str,
        *,
        end: bytes = b"\n",
        count: int = 0,
        wait_s: float | None = None,
        max_in_flight: int = 2500,
        msg_timeout_s: float | None = None,
        timeout_s: float = 5.0,
        is_quiet: bool = True,
        stdout: int = 1,
    ) -> None:
        """Prepare; `run` connects.

        Args:
            end: behind each body.
            count: messages to show; 0 for no end.
            wait_s: silence that ends it.
            is_quiet: without a progress line.
            stdout: the descriptor of the output.
        """
        self.shown = 0  # messages that are printed
        self._address = address
        self._topic = topic
        self._channel = channel
        self._end = end
        self._count = count
        self._wait_s = wait_s
        self._max_in_flight = max_in_flight
        self._msg_timeout_s = msg_timeout_s
        self._timeout_s = timeout_s
        self._stdout = stdout
        self._can_block = can_block(stdout)
        self._write_bytes = _PIPE_BYTES if self._can_block else _FILE_BYTES
        self._waiting: deque[_Lines] = deque()
        self._failure: OSError | None = None  # of stdout
        self._rdy = 0
        self._touch_s = 0.0
        self._started = self._last_at = time.monotonic()
        self._interrupts = Interrupts(dict.fromkeys(signals.ending(), ExitCode.DONE))
        self._status = StatusLine(self._show_progress, is_quiet=is_quiet)

    def run(self) -> ExitCode | None:
        """Show messages; return the exit code, or None if `Tail` has to go on.

        Raises:
            OSError: stdout cannot be written.
        """
        self._interrupts.leave_to_python()
        try:
            with self._connect() as connection:
                self._interrupts.install()
                code: ExitCode | None = self._follow(connection)
        except (OSError, ValueError, LostError, RefusedError):
            code = None
        finally:
            self._status.clear()
            self._interrupts.restore()
        if self._failure is not None:
            raise self._failure
        if code is None:
            self._end_line()
        return code

    def _connect(self) -> PlainConnection:
        fields: dict[str, object] = {}
        if self._msg_timeout_s is not None:
            fields["msg_timeout"] = round(self._msg_timeout_s * 1000)
        return connect(self._address, self._timeout_s, "nsq-tail", **fields)

    def _follow(self, connection: PlainConnection) -> ExitCode:
        """Show messages until the end."""
        negotiated = connection.negotiated
        self._touch_s = int(negotiated.get("msg_timeout", _MSG_TIMEOUT_MS)) / 2000
        self._max_in_flight = min(self._max_in_flight, int(negotiated.get("max_rdy_count", 2500)))
        connection.write(wire.encode_sub(self._topic, self._channel))
        self._set_rdy(connection)
        while (code := self._find_end()) is None:
            self._wait(connection)
        self._leave(connection)
        return code

    def _find_end(self) -> ExitCode | None:
        """Return the exit code if it is time to end."""
        if self._interrupts.take_question():
            self._status.announce()
        if self._interrupts.code is not None or self._failure is not None:
            return ExitCode.DONE
        if self._count and self.shown >= self._count:
            return ExitCode.DONE
        if self._wait_s is None or time.monotonic() - self._last_at < self._wait_s:
            return None
        return ExitCode.TIMEOUT if self._count else ExitCode.DONE

    def _wait(self, connection: PlainConnection) -> None:
        """Wait for the socket and for room in stdout; move bytes."""
        writers: list[int | PlainConnection] = [connection] if connection.has_output else []
        if self._waiting:
            writers.append(self._stdout)
        tick_s = TICK_S if self._wait_s is None else min(TICK_S, self._wait_s)
        readable, writable, _ = select.select([connection], writers, [], tick_s)
        if connection in writable:
            connection.send()
        if readable:
            self._receive(connection)
        if self._waiting and (self._stdout in writable or not self._can_block):
            self._print(connection)
        self._touch(connection)
        self._status.tick()
        connection.check_silence()

    def _receive(self, connection: PlainConnection) -> None:
        messages, replies = connection.receive()
        for is_error, reply in replies:
            if is_error and not reply.startswith(_LATE_ERRORS):
                raise RefusedError
        if not messages:
            return
        self._last_at = time.monotonic()
        if self._count:
            room = self._count - self.shown - sum(len(each.ids) for each in self._waiting)
            if too_many := [message[2] for message in messages[room:]]:
                connection.write(wire.encode_reqs(too_many, 0))
                messages = messages[:room]
        ids = [message[2] for message in messages]
        lines = [message[3] for message in messages]
        lines.append(b"")
        self._waiting.append(_Lines(ids, self._end.join(lines), self._last_at + self._touch_s))

    def _print(self, connection: PlainConnection) -> None:
        """Print as much as stdout takes, and finish the messages that are printed."""
        while self._waiting:
            first = self._waiting[0]
            try:
                first.text = first.text[os.write(self._stdout, first.text[: self._write_bytes]) :]
            except OSError as error:
                self._failure = error
                return
            if not first.text:
                self._waiting.popleft()
                self.shown += len(first.ids)
                # Before the FINs, which would have nsqd send messages that are not wanted any more.
                self._set_rdy(connection)
                connection.write(wire.encode_fins(first.ids))
            if self._can_block and not select.select([], [self._stdout], [], 0)[1]:
                return

    def _set_rdy(self, connection: PlainConnection) -> None:
        wanted = self._max_in_flight
        if self._count:
            wanted = min(wanted, self._count - self.shown)
        if wanted != self._rdy:
            self._rdy = wanted
            connection.write(wire.encode_rdy(wanted))

    def _touch(self, connection: PlainConnection) -> None:
        """Keep messages that wait for the reader of stdout from being delivered again."""
        now = time.monotonic()
        for each in self._waiting:
            if now >= each.touch_due:
                each.touch_due = now + self._touch_s
                connection.write(wire.encode_touches(each.ids))

    def _leave(self, connection: PlainConnection) -> None:
        """Give back what is not printed, also what still comes, and disconnect."""
        for each in self._waiting:
            connection.write(wire.encode_reqs(each.ids, 0))
        self._waiting.clear()
        connection.write(wire.CLS)
        deadline = time.monotonic() + _FAREWELL_S
        # What an nsqd does not take any more, it delivers again.
        with contextlib.suppress(OSError, LostError):
            while (left_s := deadline - time.monotonic()) > 0:
                writers = [connection] if connection.has_output else []
                readable, writable, _ = select.select([connection], writers, [], left_s)
                if writable:
                    connection.send()
                if readable:
                    messages, replies = connection.receive()
                    if messages:
                        connection.write(wire.encode_reqs([each[2] for each in messages], 0))
                    if (False, wire.CLOSE_WAIT) in replies:
                        break
            connection.finish()

    def _end_line(self) -> None:
        """Print the rest of lines that were begun; nsqd delivers the others again."""
        if self._waiting and self._waiting[0].is_begun:
            first = self._waiting[0]
            write_all(first.text, self._stdout)
            self.shown += len(first.ids)
        self._waiting.clear()

    def _show_progress(self) -> str:
        lasted_s = max(time.monotonic() - self._started, 1e-9)
        rate = self.shown / lasted_s
        in_flight = sum(len(each.ids) for each in self._waiting)
        return f"{self.shown:,} shown, {rate:,.0f}/s, {in_flight:,} in flight, 1 connection"


def can_block(descriptor: int) -> bool:
    """Say whether writes may wait for a reader: of a pipe, a socket, a terminal."""
    mode = os.fstat(descriptor).st_mode
    is_null = stat.S_ISCHR(mode) and not os.isatty(descriptor)
    return not (stat.S_ISREG(mode) or is_null)


def write_all(data: bytes | memoryview, descriptor: int = 1) -> None:
    """Write, past Python's buffer, whose lock a blocked thread would keep at the end."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
