"""ExpressPub: publish over one plain connection, without an event loop.

What is out of the ordinary (an nsqd that refuses, closes or cannot be reached, a progress line)
ends the express, and `Job`, which knows what to do, goes on with the messages that are not
published.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from nsqd.cli import signals
from nsqd.cli.messages.pieces import Splitter
from nsqd.cli.messages.plain import (
    TICK_S,
    Interrupts,
    LostError,
    PlainConnection,
    RefusedError,
    connect,
)
from nsqd.cli.messages.tally import Tally
from nsqd.cli.output import note
from nsqd.client.address import Address
from nsqd.client.errors import PublishTimeoutError
from nsqd.protocol import client_wire as wire

# More would come from fresh pages, which the kernel has to clear: 4 ms of 30,000 lines.
READ_BYTES: Final = 1 << 18


class ExpressPub:
    """One connection and one input: given messages, or stdin."""

    def __init__(
        self,
        address: Address,
        tally: Tally,
        splitter: Splitter,
        given: Sequence[bytes],
        *,
        timeout_s: float,
        batch_count: int,
        batch_bytes: int,
        window_count: int,
        has_progress: bool,
        stdin: int = 0,
    ) -> None:
        """Prepare; `run` connects.

        Args:
            given: messages; without any, stdin is read.
            has_progress: whether a progress line is wanted, which `Job` shows.
            stdin: the descriptor of the input.
        """
        self._address = address
        self._tally = tally
        self._splitter = splitter
        self._stdin = stdin
        self._timeout_s = timeout_s
        self._batch_count = batch_count
        self._batch_bytes = batch_bytes
        self._window_count = window_count
        self._unanswered: deque[tuple[float, list[bytes]]] = deque()  # the deadline, the messages
        self._waiting: deque[list[bytes]] = deque(self._cut(list(given)))
        self._has_input = not given
        self._handed_over_at = time.monotonic() + TICK_S if has_progress else None
        codes = {number: signals.CODES[number] for number in signals.ending()}
        self._interrupts = Interrupts(codes)

    def run(self) -> bool:
        """Publish; say whether that was all, or `take_rest` has more.

        Raises:
            PublishTimeoutError: nsqd has not answered in time.
        """
        self._interrupts.leave_to_python()
        try:
            with connect(self._address, self._timeout_s, "nsq-pub") as connection:
                self._tally.has_connected = True
                self._interrupts.install()
                self._serve(connection)
        except RefusedError:
            return False
        except (OSError, ValueError, LostError):
            self._tally.resent += sum(len(bodies) for _, bodies in self._unanswered)
            return False
        return self._tally.interrupt is not None or not (self._waiting or self._has_input)

    def take_rest(self) -> list[list[bytes]]:
        """Return the messages that were read and are not known to be published, in order."""
        rest = [bodies for _, bodies in self._unanswered]
        self._tally.begun -= sum(map(len, rest))
        rest += self._waiting
        self._unanswered.clear()
        self._waiting.clear()
        return rest

    def restore_signals(self) -> None:
        """Give the signals back; not before `Job` has ended, which has handlers of its own."""
        self._interrupts.restore()

    @property
    def has_input(self) -> bool:
        """Whether stdin has not come to its end."""
        return self._has_input

    def _serve(self, connection: PlainConnection) -> None:
        """Publish until the end of the input, or until it is time to end the express."""
        while True:
            is_ending = self._is_ending()
            if not is_ending:
                self._fill(connection)
            is_idle = not connection.has_output and not self._unanswered
            if is_idle and (is_ending or not (self._waiting or self._has_input)):
                return
            self._wait(connection, wants_input=self._has_input and not is_ending)
            if self._unanswered and time.monotonic() > self._unanswered[0][0]:
                raise PublishTimeoutError("nsqd has not answered in time")
            connection.check_silence()

    def _is_ending(self) -> bool:
        """Say whether nothing more is to be sent here: only answers are waited for."""
        if self._interrupts.take_question():
            note(self._tally.show())
        self._tally.interrupt = self._interrupts.code
        if self._tally.interrupt is not None:
            return True
        return self._handed_over_at is not None and time.monotonic() >= self._handed_over_at

    def _fill(self, connection: PlainConnection) -> None:
        """Encode the next command, if the window and the socket allow it."""
        has_room = not connection.has_output and len(self._unanswered) < self._window_count
        if not self._waiting or not has_room:
            return
        topic = self._tally.topic
        bodies = self._waiting.popleft()
        self._tally.begun += len(bodies)
        self._unanswered.append((time.monotonic() + self._timeout_s, bodies))
        if len(bodies) == 1:
            connection.write(wire.encode_pub(topic, bodies[0]))
        else:
            connection.write(wire.encode_mpub(topic, bodies))

    def _wait(self, connection: PlainConnection, *, wants_input: bool) -> None:
        """Wait for the socket, and for stdin where there is room; move bytes."""
        readers: list[int | PlainConnection] = [connection]
        if wants_input and not self._waiting:
            readers.append(self._stdin)
        writers = [connection] if connection.has_output else []
        readable, writable, _ = select.select(readers, writers, [], TICK_S)
        if writable:
            connection.send()
        if connection in readable:
            self._receive(connection)
        if self._stdin in readable:
            self._read()

    def _read(self) -> None:
        data = os.read(self._stdin, READ_BYTES)
        self._has_input = bool(data)
        bodies = self._splitter.feed(data) if data else self._splitter.finish()
        self._tally.empty = self._splitter.empty_count
        self._waiting += self._cut(bodies)

    def _cut(self, bodies: list[bytes]) -> Iterator[list[bytes]]:
        """Cut messages into lists that fit into a command each."""
        for start in range(0, len(bodies), self._batch_count):
            yield from wire.cut(bodies[start : start + self._batch_count], self._batch_bytes)

    def _receive(self, connection: PlainConnection) -> None:
        _, replies = connection.receive()
        for is_error, reply in replies:
            if is_error:
                raise RefusedError
            if reply != wire.OK or not self._unanswered:
                raise LostError
            _, bodies = self._unanswered.popleft()
            self._tally.count(bodies)
            self._tally.nodes.add(str(self._address))
