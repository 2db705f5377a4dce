"""Express: publish over one plain connection, without an event loop.

`nsq pub` is often a line of a script or the end of a pipe, and asyncio takes longer to load than
nsqd to accept 30,000 messages. So the usual case goes without: a plain connection that works. What
is out of the ordinary (an nsqd that refuses, closes or cannot be reached, a progress line) ends the
express, and `Job`, which knows what to do, goes on with the messages that are not published.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

from nsqd.cli.messages.pieces import Splitter
from nsqd.cli.messages.tally import Tally
from nsqd.cli.output import ExitCode, note
from nsqd.client.address import Address
from nsqd.client.errors import PublishTimeoutError
from nsqd.protocol import client_wire as wire

READ_BYTES: Final = 1 << 20
# So often signals are looked at while nothing happens.
_TICK_S: Final = 0.25
_RECEIVE_BYTES: Final = 1 << 16
_HEARTBEAT_S: Final = 30.0
_SILENT_S: Final = 2 * _HEARTBEAT_S
SIGNALS: Final = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
}
_INFO_SIGNALS: Final = ("SIGUSR1", "SIGINFO")


class _LostError(Exception):
    """The connection is of no use any more; commands without an answer may have been executed."""


class _RefusedError(Exception):
    """nsqd has refused a command; it executes nothing behind it."""


class Express:
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
        self._reader = wire.FrameReader()
        self._outgoing = memoryview(b"")
        self._unanswered: deque[tuple[float, list[bytes]]] = deque()  # the deadline, the messages
        self._waiting: deque[list[bytes]] = deque(self._cut(list(given)))
        self._has_input = not given
        self._handed_over_at = time.monotonic() + _TICK_S if has_progress else None
        self._last_received = time.monotonic()
        self._is_asked = False  # whether a signal asks how far it is
        self._handlers_before: dict[signal.Signals, signal._HANDLER] = {}

    def run(self) -> bool:
        """Publish; say whether that was all, or `take_rest` has more.

        Raises:
            PublishTimeoutError: nsqd has not answered in time.
        """
        try:
            with self._connect() as connection:
                self._install_signals()
                connection.setblocking(False)
                self._serve(connection)
        except _RefusedError:
            return False
        except (OSError, ValueError, _LostError, wire.FrameError):
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
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    @property
    def has_input(self) -> bool:
        """Whether stdin has not come to its end."""
        return self._has_input

    def _connect(self) -> socket.socket:
        """Connect and do the handshake; a signal ends the program at once, as nothing was sent."""
        for number in SIGNALS:
            self._handle(number, signal.SIG_DFL)
        connection = _open(self._address, self._timeout_s)
        try:
            connection.sendall(wire.MAGIC + wire.encode_with_body("IDENTIFY\n", _introduce()))
            replies: list[wire.Reply] = []
            while not replies:
                data = connection.recv(_RECEIVE_BYTES)
                if not data:
                    raise _LostError
                _, replies = self._reader.feed(data)
            is_error, answer = replies[0]
            if len(replies) > 1:
                raise _LostError
            if is_error or (answer[:1] == b"{" and json.loads(answer).get("auth_required")):
                raise _RefusedError
        except BaseException:
            connection.close()
            raise
        self._tally.has_connected = True
        return connection

    def _install_signals(self) -> None:
        for number in SIGNALS:
            self._handle(number, self._interrupted)
        for name in _INFO_SIGNALS:
            if hasattr(signal, name):
                self._handle(getattr(signal, name), self._asked)

    def _handle(self, number: signal.Signals, handler: signal._HANDLER) -> None:
        before = signal.signal(number, handler)
        self._handlers_before.setdefault(number, before)

    def _interrupted(self, number: int, _frame: FrameType | None) -> None:
        code = SIGNALS[signal.Signals(number)]
        if self._tally.interrupt is not None:
            os._exit(code)
        self._tally.interrupt = code

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True

    def _serve(self, connection: socket.socket) -> None:
        """Publish until the end of the input, or until it is time to end the express."""
        while True:
            is_ending = self._is_ending()
            if not is_ending:
                self._fill()
            is_idle = not self._outgoing and not self._unanswered
            if is_idle and (is_ending or not (self._waiting or self._has_input)):
                return
            self._wait(connection, wants_input=self._has_input and not is_ending)
            self._check_time()

    def _is_ending(self) -> bool:
        """Say whether nothing more is to be sent here: only answers are waited for."""
        if self._is_asked:
            self._is_asked = False
            note(self._tally.show())
        if self._tally.interrupt is not None:
            return True
        return self._handed_over_at is not None and time.monotonic() >= self._handed_over_at

    def _fill(self) -> None:
        """Encode the next command, if the window and the socket allow it."""
        tally = self._tally
        if self._waiting and not self._outgoing and len(self._unanswered) < self._window_count:
            bodies = self._waiting.popleft()
            tally.begun += len(bodies)
            self._unanswered.append((time.monotonic() + self._timeout_s, bodies))
            if len(bodies) == 1:
                self._write(wire.encode_pub(tally.topic, bodies[0]))
            else:
                self._write(wire.encode_mpub(tally.topic, bodies))

    def _wait(self, connection: socket.socket, *, wants_input: bool) -> None:
        """Wait for the socket, and for stdin where there is room; move bytes."""
        readers: list[int | socket.socket] = [connection]
        if wants_input and not self._waiting:
            readers.append(self._stdin)
        readable, writable, _ = select.select(
            readers, [connection] if self._outgoing else [], [], _TICK_S
        )
        if writable:
            self._outgoing = self._outgoing[connection.send(self._outgoing) :]
        if connection in readable:
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                raise _LostError
            self._receive(data)
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

    def _receive(self, data: bytes) -> None:
        self._last_received = time.monotonic()
        _, replies = self._reader.feed(data)
        for is_error, reply in replies:
            if is_error:
                raise _RefusedError
            if reply == wire.HEARTBEAT:
                self._write(wire.NOP)
            elif reply == wire.OK and self._unanswered:
                _, bodies = self._unanswered.popleft()
                self._tally.count(bodies)
                self._tally.nodes.add(str(self._address))
            else:
                raise _LostError

    def _write(self, data: bytes) -> None:
        # Nothing is copied but where a heartbeat comes while a command leaves.
        self._outgoing = memoryview(bytes(self._outgoing) + data if self._outgoing else data)

    def _check_time(self) -> None:
        now = time.monotonic()
        if self._unanswered and now > self._unanswered[0][0]:
            raise PublishTimeoutError("nsqd has not answered in time")
        if now - self._last_received > _SILENT_S:
            raise _LostError


def _open(address: Address, timeout_s: float) -> socket.socket:
    if address.is_unix:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address.host)
        except BaseException:
            connection.close()
            raise
        return connection
    # As bytes: for a text, even an ASCII one, Python would load the tables of IDNA.
    host: Any = address.host.encode("ascii" if address.host.isascii() else "idna")
    connection = socket.create_connection((host, address.port), timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _introduce() -> bytes:
    """Return the body of IDENTIFY: only what a plain connection needs."""
    hostname = socket.gethostname()
    fields = {
        "client_id": f"{hostname.partition('.')[0]}/{os.getpid()}",
        "hostname": hostname,
        "user_agent": "nsq-pub",
        "feature_negotiation": True,
        "heartbeat_interval": round(_HEARTBEAT_S * 1000),
    }
    return json.dumps(fields).encode()
