"""The auth server's client: ask who a client is and what it may do, and remember the answer.

The query blocks and is meant for a thread; its answer is immutable and belongs to one connection.
The secret goes to the configured servers alone: redirects are not followed, and no error says it.
"""

import base64
import errno
import http
import http.client
import io
import json
import math
import random
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, cast
from urllib.parse import SplitResult, unquote_to_bytes, urlencode, urlsplit

from nsqd.tcp.auth_patterns import Pattern, PatternError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
MAX_REPLY_BYTES = 1 << 20
# Of all patterns of a reply together: 20 MB. A few bytes of a pattern can make thousands.
MAX_REPLY_INSTRUCTIONS = 200_000
# Of answers remembered by one connection: a publisher asks about the same few topics all the time.
MAX_DECISIONS = 1024

_PERMISSIONS: Final = frozenset({PUBLISH, SUBSCRIBE})
_MAX_TTL_S: Final = (1 << 63) - 1
_ACCEPT: Final = "application/vnd.nsq; version=1.0"
_T = TypeVar("_T")
_PORTS: Final = {"http": 80, "https": 443}


class AuthError(Exception):
    """No auth server gave a usable answer; the text says why, for the log and not for clients."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """One entry of an answer: what may be done with which topics and channels."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Say whether this entry is enough.

        Publishing counts as the channel "": an entry without channels allows nothing at all, and
        one for certain channels only allows no publishing. Auth servers rely on it.
        """
        return (
            permission in self.permissions
            and self.topic.matches(topic)
            and any(pattern.matches(channel) for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class AuthState:
    """Who a client is and what it may do until the answer expires."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_at: float  # In seconds of the monotonic clock.
    _decisions: dict[tuple[str, str, str], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def permission_count(self) -> int:
        """How many entries the answer has, which is what AUTH replies."""
        return len(self.authorizations)

    def is_allowed(self, permission: str, topic: str, channel: str) -> bool:
        """Say whether some entry allows this.

        Args:
            permission: `PUBLISH` or `SUBSCRIBE`.
            topic: a valid name.
            channel: a valid name; "" to publish.
        """
        question = (permission, topic, channel)
        decision = self._decisions.get(question)
        if decision is None:
            decision = any(entry.allows(*question) for entry in self.authorizations)
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[question] = decision
        return decision

    def encode_reply(self) -> bytes:
        """Return what the client gets as answer to AUTH."""
        reply = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": self.permission_count,
        }
        return json.dumps(reply, separators=(",", ":")).encode()

    def is_expired(self, now: float) -> bool:
        """Say whether the server must be asked again."""
        return now >= self.expires_at


def query_auth(
    addresses: Sequence[str],
    *,
    secret: bytes | str,
    remote_ip: str,
    common_name: str,
    is_tls: bool,
    method: str,
    connect_timeout_s: float,
    request_timeout_s: float,
    ssl_context: ssl.SSLContext | None,
    now: float,
) -> AuthState:
    """Ask the servers one by one, beginning anywhere, until one gives a usable answer.

    Args:
        addresses: `host:port`, or URLs.
        secret: what the client sent.
        remote_ip: the client's, without port; "" for a unix socket.
        common_name: of the client's certificate, or "".
        method: "get" or "post".
        connect_timeout_s: for connecting to a server, TLS included; 0 for none.
        request_timeout_s: for all that follows; 0 for none.
        ssl_context: for https; None for the system's authorities.
        now: the monotonic clock, from which the answer's lifetime counts.

    Raises:
        AuthError: none did.
    """
    raw_secret = secret.encode() if isinstance(secret, str) else secret
    # In the order of their names, as nsqd sends them.
    parameters = {
        "common_name": common_name.encode("utf-8", "replace"),
        "remote_ip": remote_ip.encode(),
        "secret": raw_secret,
        "tls": b"true" if is_tls else b"false",
    }
    failures = []
    start = random.randrange(len(addresses)) if addresses else 0
    for address in (*addresses[start:], *addresses[:start]):
        request = _Request(address, parameters, method, ssl_context)
        try:
            reply = request.send(connect_timeout_s, request_timeout_s)
            return _read_reply(reply, now)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"failed to auth against {request.server} - {_describe(error)}")
    raise AuthError("; ".join(failures) or "no auth servers")


class _ReplyError(ValueError):
    """The server answered, but not with what the protocol wants. The text is ours."""


def _describe(error: Exception) -> str:
    # The texts of http.client and urllib may quote the request, of which the secret is part.
    if isinstance(error, _ReplyError):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return type(error).__name__


@dataclass(frozen=True, slots=True)
class _Request:
    """One server and what it is asked."""

    address: str
    parameters: dict[str, bytes]
    method: str
    ssl_context: ssl.SSLContext | None

    @property
    def server(self) -> str:
        """The address as far as it may be logged: no password, no query."""
        return self.address.rpartition("@")[2].partition("?")[0]

    def send(self, connect_timeout_s: float, request_timeout_s: float) -> bytes:
        """Return the body of the server's good answer.

        Raises:
            OSError: it cannot be reached, or not in time.
            http.client.HTTPException: it does not speak HTTP.
            ValueError: its address is none, or its answer is no good.
        """
        address = self.address
        url = urlsplit(address if "://" in address else f"http://{address}/auth")
        if url.scheme not in _PORTS or not url.hostname:
            raise _ReplyError("not an http or https URL")
        port = url.port or _PORTS[url.scheme]
        status, body = self._exchange(url, port, connect_timeout_s, request_timeout_s)
        if status == http.HTTPStatus.FORBIDDEN and url.scheme == "http":
            https_port = _find_https_port(body)
            if https_port is not None:
                url = url._replace(scheme="https")
                status, body = self._exchange(url, https_port, connect_timeout_s, request_timeout_s)
        if status != http.HTTPStatus.OK:
            raise _ReplyError(f"status {status}")
        return body

    def _exchange(
        self, url: SplitResult, port: int, connect_timeout_s: float, request_timeout_s: float
    ) -> tuple[int, bytes]:
        assert url.hostname is not None
        timeout_s = connect_timeout_s or None
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = self.ssl_context or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                url.hostname, port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(url.hostname, port, timeout=timeout_s)
        try:
            connection.connect()
            deadline = time.monotonic() + (request_timeout_s or math.inf)
            connection.sock.settimeout(_time_left(deadline))
            self._write(connection, url)
            return _read_response(connection.sock, deadline)
        finally:
            connection.close()

    def _write(self, connection: http.client.HTTPConnection, url: SplitResult) -> None:
        headers = {"Accept": _ACCEPT, "Connection": "close"}
        if url.username is not None:
            user = unquote_to_bytes(url.username) + b":" + unquote_to_bytes(url.password or "")
            headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"
        target = url.path or "/"
        if url.query:
            target += f"?{url.query}"
        if self.method == "post":
            # One-element arrays, because nsqd encodes Go's url.Values.
            values = {
                name: [value.decode("utf-8", "replace")] for name, value in self.parameters.items()
            }
            headers["Content-Type"] = "application/json"
            body = json.dumps(values, separators=(",", ":")).encode()
            connection.request("POST", target, body, headers)
        else:
            # With a "?" even after another one, as nsqd does.
            connection.request("GET", f"{target}?{urlencode(self.parameters)}", headers=headers)


def _read_response(sock: socket.socket, deadline: float) -> tuple[int, bytes]:
    source = cast(socket.socket, _DeadlineSocket(sock, deadline))
    with http.client.HTTPResponse(source) as response:
        response.begin()
        body = response.read(MAX_REPLY_BYTES + 1)
        if len(body) > MAX_REPLY_BYTES:
            raise _ReplyError(f"reply of more than {MAX_REPLY_BYTES} bytes")
        return response.status, body


class _DeadlineSocket:
    """What http.client needs of a socket to read a response that must be complete by a deadline.

    A socket's own timeout is for one receive, so a server that sends a byte at a time outlasts it.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline))


class _DeadlineReader(io.RawIOBase):
    """The raw stream below: each receive has only the time that is left."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._sock.settimeout(_time_left(self._deadline))
        return self._sock.recv_into(buffer)


def _time_left(deadline: float) -> float | None:
    """Return the seconds left, None for no limit.

    Raises:
        TimeoutError: there are none.
    """
    if deadline == math.inf:
        return None
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")
    return left_s


def _find_https_port(body: bytes) -> int | None:
    """Return where a server that wants https says it is to be found."""
    try:
        port = _member(_decode(body), "https_port", int, 0)
    except _ReplyError:
        return None
    return port if 0 < port < 65_536 else None


def _read_reply(body: bytes, now: float) -> AuthState:
    reply = _decode(body)
    ttl_s = _member(reply, "ttl", int, 0)
    if not 0 < ttl_s <= _MAX_TTL_S:
        raise _ReplyError("ttl is not positive")
    return AuthState(
        identity=_member(reply, "identity", str, ""),
        identity_url=_member(reply, "identity_url", str, ""),
        authorizations=_read_entries(_member(reply, "authorizations", list, [])),
        expires_at=now + ttl_s,
    )


def _read_entries(entries: list[object]) -> tuple[Authorization, ...]:
    authorizations = []
    instruction_count = 0
    for entry in entries:
        authorization = _read_entry(entry)
        authorizations.append(authorization)
        patterns = (authorization.topic, *authorization.channels)
        instruction_count += sum(pattern.instruction_count for pattern in patterns)
        if instruction_count > MAX_REPLY_INSTRUCTIONS:
            raise _ReplyError("the patterns of the reply are too large")
    return tuple(authorizations)


def _read_entry(entry: object) -> Authorization:
    permissions = frozenset(_texts(entry, "permissions"))
    if not permissions <= _PERMISSIONS:
        raise _ReplyError("unknown permission")
    return Authorization(
        topic=_compile(_member(entry, "topic", str, "")),
        channels=tuple(map(_compile, _texts(entry, "channels"))),
        permissions=permissions,
    )


def _compile(text: str) -> Pattern:
    try:
        return Pattern(text)
    except PatternError as error:
        raise _ReplyError(f"bad pattern {text[:100]!r}: {error}") from error


def _decode(body: bytes) -> object:
    try:
        # Go's decoder replaces what is no UTF-8 and has no NaN.
        value: object = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _ReplyError("reply is not JSON") from error
    return value


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("not JSON")


def _texts(entry: object, key: str) -> list[str]:
    texts = _member(entry, key, list, [])
    if not all(isinstance(text, str) for text in texts):
        raise _ReplyError(f"{key} are not strings")
    return texts


def _member(value: object, key: str, kind: type[_T], default: _T) -> _T:
    """Return a member of a JSON object, the default if it is absent or null."""
    if not isinstance(value, dict):
        raise _ReplyError("not a JSON object")
    for name, member in value.items():
        # As Go's decoder has it: the case of keys does not matter, and a bool is no number.
        if name.lower() == key and member is not None:
            if type(member) is not kind:
                raise _ReplyError(f"{key} is not of type {kind.__name__}")
            default = member
    return default
