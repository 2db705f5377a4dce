"""PlainConnection: a connection to an nsqd for `select`, without an event loop.

`nsq pub` and `nsq tail` are often a line of a script, and asyncio takes longer to load than nsqd to
accept or to send 30,000 messages. So the usual case goes without: one nsqd, no TLS, no compression,
no AUTH. Whatever is out of the ordinary ends it; the command goes on with nsqd.client then.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

from nsqd.cli import signals
from nsqd.cli.output import ExitCode
from nsqd.client.address import Address
from nsqd.protocol import client_wire as wire

# So often a command looks at signals and at the clock while nothing happens.
TICK_S: Final = 0.25
_INFO_SIGNALS: Final = ("SIGUSR1", "SIGINFO")
_RECEIVE_BYTES: Final = 1 << 18
_HEARTBEAT_S: Final = 30.0
_SILENT_S: Final = 2 * _HEARTBEAT_S
_FAREWELL_S: Final = 1.0


class LostError(Exception):
    """The connection is of no use any more; commands without an answer may have been executed."""


class RefusedError(Exception):
    """nsqd has refused a command; it executes nothing behind it."""


class PlainConnection:
    """One socket; made by `connect`. The caller selects, and calls `send` and `receive`."""

    def __init__(self, connected: socket.socket, address: Address) -> None:
        """Take over a socket that is connected; `shake_hands` comes next."""
        self.address = address
        # The answer to IDENTIFY; nothing of an nsqd that negotiates nothing.
        self.negotiated: dict[str, Any] = {}
        self._socket = connected
        self._reader = wire.FrameReader()
        self._outgoing = memoryview(b"")
        self._last_received = time.monotonic()

    def __enter__(self) -> PlainConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def has_output(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._outgoing)

    def shake_hands(self, fields: Mapping[str, object]) -> None:
        """Introduce ourselves.

        Raises:
            RefusedError: nsqd refuses that, or wants a secret.
            LostError: the peer is no nsqd.
            OSError: the connection was lost.
        """
        body = json.dumps({**_introduce(), **fields}).encode()
        self._socket.sendall(wire.MAGIC + wire.encode_with_body("IDENTIFY\n", body))
        replies: list[wire.Reply] = []
        while not replies:
            _, replies = self._feed(self._socket.recv(_RECEIVE_BYTES))
        is_error, answer = replies[0]
        if is_error:
            raise RefusedError
        if len(replies) > 1:
            raise LostError
        try:
            self.negotiated = json.loads(answer) if answer != wire.OK else {}
        except ValueError as error:
            raise LostError from error
        if self.negotiated.get("auth_required"):
            raise RefusedError
        self._socket.setblocking(False)

    def write(self, data: bytes) -> None:
        """Have bytes sent as soon as `select` allows it."""
        # Nothing is copied but where a heartbeat comes while a command leaves.
        self._outgoing = memoryview(bytes(self._outgoing) + data if self._outgoing else data)

    def send(self) -> None:
        """Send what the socket takes, which `select` calls writable.

        Raises:
            OSError: the connection was lost.
        """
        self._outgoing = self._outgoing[self._socket.send(self._outgoing) :]

    def receive(self) -> tuple[list[wire.RawMessage], list[wire.Reply]]:
        """Return the messages and replies that one read brings; heartbeats are answered.

        Raises:
            LostError: nsqd has closed the connection, or does not speak the protocol.
            OSError: the connection was lost.
        """
        messages, replies = self._feed(self._socket.recv(_RECEIVE_BYTES))
        if (False, wire.HEARTBEAT) in replies:
            replies = [reply for reply in replies if reply[1] != wire.HEARTBEAT]
            self.write(wire.NOP)
        return messages, replies

    def check_silence(self) -> None:
        """End a connection on which nsqd was silent for two heartbeat intervals.

        Raises:
            LostError: it was.
        """
        if time.monotonic() - self._last_received > _SILENT_S:
            raise LostError

    def finish(self) -> None:
        """Send the last commands, and let nsqd close first.

        A socket that is closed with unread bytes is reset, and nsqd may then lose commands that it
        has not read. So only our direction ends here, and nsqd ends the other one.

        Raises:
            OSError: nsqd does not take them, or does not close, or closes too soon.
        """
        self._socket.settimeout(_FAREWELL_S)
        self._socket.sendall(self._outgoing)
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(_RECEIVE_BYTES):
            pass

    def _feed(self, data: bytes) -> tuple[list[wire.RawMessage], list[wire.Reply]]:
        if not data:
            raise LostError
        self._last_received = time.monotonic()
        try:
            return self._reader.feed(data)
        except wire.FrameError as error:
            raise LostError from error


def connect(
    address: Address, timeout_s: float, user_agent: str, **fields: object
) -> PlainConnection:
    """Connect and do the handshake. Args: fields: of IDENTIFY.

    Raises:
        RefusedError: nsqd refuses that, or wants a secret.
        LostError: the peer is no nsqd.
        OSError: nsqd cannot be reached.
    """
    connection = PlainConnection(_open(address, timeout_s), address)
    try:
        connection.shake_hands({"user_agent": user_agent, **fields})
    except BaseException:
        connection.__exit__()
        raise
    return connection


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


def _introduce() -> dict[str, object]:
    """Return the fields of IDENTIFY that every plain connection has."""
    hostname = socket.gethostname()
    return {
        "client_id": f"{hostname.partition('.')[0]}/{os.getpid()}",
        "hostname": hostname,
        "feature_negotiation": True,
        "heartbeat_interval": round(_HEARTBEAT_S * 1000),
    }


class Interrupts:
    """Signals, by plain handlers that only note them; the second one ends the program."""

    def __init__(self, ending: Mapping[signal.Signals, ExitCode]) -> None:
        """Args: ending: the signals that end the command, each with its exit code."""
        self.code: ExitCode | None = None  # of the first signal
        self._ending = ending
        self._is_asked = False
        self._repeats = signals.Repeats()
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def leave_to_python(self) -> None:
        """Have a signal end the program at once, while there is nothing to lose."""
        for number in self._ending:
            self._handle(number, signal.SIG_DFL)

    def install(self) -> None:
        """Note signals from now on."""
        for number in self._ending:
            self._handle(number, self._interrupted)
        for name in _INFO_SIGNALS:
            if hasattr(signal, name):
                self._handle(getattr(signal, name), self._asked)

    def restore(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take_question(self) -> bool:
        """Say whether a signal has asked how far the command is, since the last call."""
        is_asked, self._is_asked = self._is_asked, False
        return is_asked

    def _handle(self, number: signal.Signals, handler: signal._HANDLER) -> None:
        before = signal.signal(number, handler)
        self._before.setdefault(number, before)

    def _interrupted(self, number: int, _frame: FrameType | None) -> None:
        if self._repeats.is_second():
            os._exit(128 + number)
        self.code = self._ending[signal.Signals(number)]

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
