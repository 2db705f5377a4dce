"""NSQ's protocol V2 for publishing: commands as bytes, and a publisher that sends them.

The publisher is several commands ahead of their answers. Answers come in the order of the commands,
so the commands without an answer are a queue. When a connection breaks they are sent again over the
next one: no message is lost, and some may arrive twice. No Spark here: `spark_jobs.write.sink`
makes commands of rows.
"""

import json
import logging
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nsqd.protocol import client_wire
from nsqd.protocol.names import is_valid_topic_name
from spark_jobs.tls import TlsSettings

_RECEIVE_BYTES = 64 * 1024
_USER_AGENT = "nsqd-spark"
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_CHECK_S = 5.0
# nsqd cannot publish at the moment; every other error is a refusal of the command.
_TEMPORARY = (b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED")

_logger = logging.getLogger(__name__)


class PublishError(Exception):
    """Raised when messages cannot be published: nsqd refuses them, or none can be reached."""


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Addresses, credentials and limits of a publisher."""

    addresses: tuple[tuple[str, int], ...] = ()
    lookupd: tuple[str, ...] = ()
    tls: TlsSettings | None = None
    # In no repr: settings are part of errors and plans.
    auth_secret: str | None = field(default=None, repr=False)
    # The most commands without an answer.
    window_count: int = 4
    retry_count: int = 5
    timeout_s: float = 30.0


class Command(NamedTuple):
    """Bytes for nsqd, and how many messages they carry."""

    data: bytes
    message_count: int


def check_topic(topic: str) -> None:
    """Refuse an invalid topic; a space or a line feed in it would begin another command.

    Raises:
        PublishError: the name is not valid.
    """
    if not is_valid_topic_name(topic):
        raise PublishError(f"not the name of a topic: {topic[:100]!r}")


def encode_dpub(topic: str, body: bytes, defer_ms: int) -> Command:
    """Encode a DPUB: one message, delivered defer_ms later."""
    return Command(client_wire.encode_dpub(topic, body, defer_ms), 1)


def encode_mpub(topic: str, message_count: int, framed: bytes) -> Command:
    """Encode an MPUB of messages that stand behind their sizes already."""
    return Command(client_wire.encode_framed_mpub(topic, message_count, framed), message_count)


def find_addresses(settings: PublisherSettings, topic: str | None) -> tuple[tuple[str, int], ...]:
    """Return the addresses given, or nsqlookupd's: producers of the topic, else all nodes.

    Raises:
        PublishError: no nsqlookupd answers, or none knows an nsqd.
    """
    if settings.addresses:
        return settings.addresses
    found: dict[tuple[str, int], None] = {}
    failures: list[str] = []
    paths = ["/nodes"]
    if topic is not None:
        paths.insert(0, f"/lookup?topic={urllib.parse.quote(topic)}")
    for path in paths:
        for lookupd in settings.lookupd:
            try:
                for address in _ask_lookupd(lookupd, path, settings.timeout_s):
                    found[address] = None
            except (OSError, ValueError) as error:
                failures.append(f"{lookupd}: {error}")
        if found:
            return tuple(found)
    raise PublishError(
        "nsqlookupd knows no nsqd" + (f" ({'; '.join(failures)})" if failures else "")
    )


def check_reachable(settings: PublisherSettings, topic: str | None) -> None:
    """Refuse settings with which no nsqd can be reached now.

    Raises:
        PublishError: nsqlookupd knows none, or none answers at its address.
        OSError: a file of the TLS settings cannot be read.
    """
    if settings.tls is not None:
        settings.tls.context()
    failures: list[str] = []
    for address in find_addresses(settings, topic):
        try:
            socket.create_connection(address, timeout=min(settings.timeout_s, _CHECK_S)).close()
        except OSError as error:
            host, port = address
            failures.append(f"cannot publish to {host}:{port}: {error}")
        else:
            return
    raise PublishError("; ".join(failures))


def _ask_lookupd(lookupd: str, path: str, timeout_s: float) -> list[tuple[str, int]]:
    url = (lookupd if "://" in lookupd else f"http://{lookupd}") + path
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            answer = json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return []  # no nsqd has the topic yet
            raise
    try:
        # Before version 1.0 the answer was wrapped.
        producers = answer.get("data", answer).get("producers") or []
        return [(str(each["broadcast_address"]), int(each["tcp_port"])) for each in producers]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not the answer of an nsqlookupd: {error!r}") from error


class Publisher:
    """A sender over one connection at a time, and over the next address when it breaks."""

    def __init__(
        self,
        settings: PublisherSettings,
        addresses: Sequence[tuple[str, int]],
        *,
        first_address: int = 0,
    ) -> None:
        """Prepare; the first command connects.

        Args:
            first_address: the index of the first address, so that tasks spread over them.

        Raises:
            OSError: a file of the TLS settings cannot be read.
        """
        assert addresses
        self._settings = settings
        self._addresses = addresses
        self._turn = first_address
        self._context = settings.tls.context() if settings.tls else None
        self._connection: _Connection | None = None
        self._unanswered: deque[Command] = deque()
        self._failure_count = 0
        self.published_count = 0
        # Messages that were sent again, and so may have arrived twice.
        self.resent_count = 0

    def publish(self, command: Command) -> None:
        """Send a command; wait for answers only if the window is full.

        Raises:
            PublishError: nsqd refuses, or cannot be reached again and again.
        """
        self._unanswered.append(command)
        try:
            if self._connection is None:
                self._resume()
            else:
                self._connection.send(command.data)
            while len(self._unanswered) >= self._settings.window_count:
                self._await_answer()
        except (OSError, _TemporaryError) as error:
            self._recover(error)

    def flush(self) -> None:
        """Wait for all answers.

        Raises:
            PublishError: nsqd refuses, or cannot be reached again and again.
        """
        while self._unanswered:
            try:
                if self._connection is None:
                    self._resume()
                self._await_answer()
            except (OSError, _TemporaryError) as error:
                self._recover(error)

    def close(self) -> None:
        """Close the connection; commands without an answer may be published or not."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _await_answer(self) -> None:
        assert self._connection is not None
        self._connection.wait_for_ok()
        self._failure_count = 0
        self.published_count += self._unanswered.popleft().message_count

    def _recover(self, error: Exception) -> None:
        """Connect anew and send the commands without an answer again, until that works.

        Answers are awaited elsewhere: an nsqd that accepts each command and never answers would
        keep the task here for ever.
        """
        while True:
            self.close()
            self._failure_count += 1
            if self._failure_count > self._settings.retry_count:
                raise PublishError(
                    f"cannot publish to {self._address_text()}: {error}"
                    f" (tried {self._failure_count} times)"
                ) from error
            _logger.warning("publishing failed, trying again error=%s", error)
            time.sleep(min(_FIRST_PAUSE_S * 2 ** (self._failure_count - 1), _MAX_PAUSE_S))
            self._turn += 1
            try:
                self._resume()
            except (OSError, _TemporaryError) as again:
                error = again
            else:
                return

    def _resume(self) -> None:
        """Connect to the address whose turn it is, and send the commands without an answer."""
        is_again = self._failure_count > 0
        host, port = self._addresses[self._turn % len(self._addresses)]
        self._connection = _Connection(host, port, self._settings, self._context)
        for command in self._unanswered:
            self._connection.send(command.data)
            if is_again:
                self.resent_count += command.message_count

    def _address_text(self) -> str:
        host, port = self._addresses[self._turn % len(self._addresses)]
        return f"{host}:{port}"


class _TemporaryError(Exception):
    """Raised when nsqd could not publish, but may later."""


class _Connection:
    """A connection that has said IDENTIFY and AUTH, and is ready to publish."""

    def __init__(
        self, host: str, port: int, settings: PublisherSettings, context: ssl.SSLContext | None
    ) -> None:
        self._name = f"{host}:{port}"
        self._frames = client_wire.FrameReader()
        self._replies: deque[client_wire.Reply] = deque()
        self._socket: socket.socket = socket.create_connection((host, port), settings.timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._identify(host, context)
            if settings.auth_secret is not None:
                self.send(client_wire.encode_with_body("AUTH\n", settings.auth_secret.encode()))
                self._receive()
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait_for_ok(self) -> None:
        answer = self._receive()
        if answer != b"OK":
            raise PublishError(f"unexpected answer from {self._name}: {answer[:100]!r}")

    def close(self) -> None:
        self._socket.close()

    def _identify(self, host: str, context: ssl.SSLContext | None) -> None:
        request = json.dumps(
            {
                "client_id": _USER_AGENT,
                "hostname": socket.gethostname(),
                "user_agent": _USER_AGENT,
                "feature_negotiation": True,
                # A task may wait for Spark longer than a heartbeat waits for its answer.
                "heartbeat_interval": -1,
                "tls_v1": context is not None,
            }
        ).encode()
        self.send(client_wire.MAGIC + client_wire.encode_with_body("IDENTIFY\n", request))
        answer = self._receive()
        try:
            # An nsqd that negotiates nothing says OK.
            negotiated = {} if answer == b"OK" else dict(json.loads(answer))
        except (ValueError, TypeError) as error:
            raise PublishError(f"{self._name} does not speak NSQ's protocol") from error
        if context is None:
            return
        if not negotiated.get("tls_v1"):
            raise PublishError(f"{self._name} does not offer TLS")
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise PublishError(f"{self._name} is not trusted: {error.verify_message}") from error
        self.wait_for_ok()

    def _receive(self) -> bytes:
        """Return the next answer, after answering heartbeats.

        Raises:
            PublishError: nsqd refuses, or speaks another protocol.
            _TemporaryError: nsqd could not publish, but may later.
            OSError: the connection broke.
        """
        while True:
            is_error, data = self._read_reply()
            if is_error:
                text = data.decode("utf-8", "replace")
                if data.startswith(_TEMPORARY):
                    raise _TemporaryError(text)
                raise PublishError(f"{self._name} refuses: {text}")
            if data != client_wire.HEARTBEAT:
                return data
            self.send(client_wire.NOP)

    def _read_reply(self) -> client_wire.Reply:
        while not self._replies:
            received = self._socket.recv(_RECEIVE_BYTES)
            if not received:
                raise ConnectionError(f"{self._name} closed the connection")
            try:
                _, replies = self._frames.feed(received)
            except client_wire.FrameError as error:
                raise PublishError(f"{self._name} does not speak NSQ's protocol") from error
            self._replies.extend(replies)
        return self._replies.popleft()
