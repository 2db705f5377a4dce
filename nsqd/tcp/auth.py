"""AuthServers: ask for a client's identity and rights. AuthState: the answer of one of them.
ClientAuth: the rights of one client.

An answer is immutable and belongs to one connection. The secret goes to the configured servers
alone: redirects are not followed, and no error text holds it.
"""

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import urlencode

from nsqd.http.client import BadReplyError, HttpClient, Url, UrlError
from nsqd.protocol.errors import ErrorCode, FatalClientError, go_quote
from nsqd.runtime.slices import gather_slices
from nsqd.runtime.tls import TlsCodec
from nsqd.tcp.auth_patterns import Pattern, PatternError

logger = logging.getLogger(__name__)

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
# The permission that each command needs.
_PERMISSION_OF = {"SUB": SUBSCRIBE, "PUB": PUBLISH, "MPUB": PUBLISH, "DPUB": PUBLISH}
# Questions under way; further clients wait their turn. An auth server that hangs has so many
# connections at most.
MAX_QUESTIONS = 32
# Of all patterns of an answer together: 20 MB. A few bytes of a pattern can make thousands of
# instructions, and the smallest pattern takes 2 kB.
MAX_REPLY_INSTRUCTIONS = 200_000
MAX_REPLY_PATTERNS = 20_000
# Of all entries together, equal ones counted each time: one after the other may have to be tried.
MAX_REPLY_USES = 100_000
# Of answers remembered by one connection: a publisher asks about the same few topics all the time.
MAX_DECISIONS = 1024

_PERMISSIONS: Final = frozenset({PUBLISH, SUBSCRIBE})
_MAX_TTL_S: Final = (1 << 63) - 1
_T = TypeVar("_T")


class AuthError(Exception):
    """No auth server gave a usable answer; the text says why, for the log and not for clients."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """One entry of an answer: permissions for the topics and channels that match."""

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
    """The identity and the rights of a client, until the answer expires."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_at: float  # In seconds of the monotonic clock.
    _decisions: dict[tuple[str, str, str], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def permission_count(self) -> int:
        """The number of entries, which the reply to AUTH names."""
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
        """Return the reply to AUTH."""
        reply = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": self.permission_count,
        }
        return json.dumps(reply, separators=(",", ":")).encode()

    def is_expired(self, now: float) -> bool:
        """Say whether the server must be asked again."""
        return now >= self.expires_at


@dataclass(frozen=True, slots=True)
class Question:
    """The facts about a client that an auth server decides by."""

    secret: bytes
    remote_ip: str  # without the port; "" for a unix socket
    common_name: str  # of the client's certificate; "" if it has none
    is_tls: bool

    def parameters(self) -> dict[str, bytes]:
        """Return the parameters in the order of their names, as nsqd sends them."""
        return {
            "common_name": self.common_name.encode("utf-8", "replace"),
            "remote_ip": self.remote_ip.encode(),
            "secret": self.secret,
            "tls": b"true" if self.is_tls else b"false",
        }


class AuthServers:
    """Ask the configured auth servers, for `MAX_QUESTIONS` clients at a time."""

    def __init__(
        self,
        addresses: Sequence[str],
        client: HttpClient,
        *,
        method: str = "get",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        addresses: `host:port`, or URLs.
        client: bounds time and size of each exchange; its `close` stays with its owner.
        method: "get" or "post".
        clock: counts the lifetime of answers.
        """
        self._addresses = addresses
        self._client = client
        self._method = method
        self._clock = clock
        self._turns = asyncio.Semaphore(MAX_QUESTIONS)
        self._tasks: set[asyncio.Task[AuthState]] = set()

    def ask(self, question: Question) -> asyncio.Task[AuthState]:
        """Ask in the background; the task returns an `AuthState` or raises `AuthError`."""
        task = asyncio.get_running_loop().create_task(self._ask_in_turn(question), name="auth")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Cancel the questions under way."""
        for task in self._tasks:
            task.cancel()

    async def _ask_in_turn(self, question: Question) -> AuthState:
        async with self._turns:
            return await self._ask(question)

    async def _ask(self, question: Question) -> AuthState:
        """Ask the servers one by one, beginning anywhere, until one gives a usable answer.

        Raises:
            AuthError: none did.
        """
        now = self._clock()
        addresses = self._addresses
        failures = []
        start = random.randrange(len(addresses)) if addresses else 0
        for address in (*addresses[start:], *addresses[:start]):
            try:
                return await self._ask_one(address, question, now)
            except (OSError, BadReplyError, ValueError) as error:
                shown = address.rpartition("@")[2].partition("?")[0]  # no password, no query
                failures.append(f"failed to auth against {shown} - {_describe(error)}")
        raise AuthError("; ".join(failures) or "no auth servers")

    async def _ask_one(self, address: str, question: Question, now: float) -> AuthState:
        """Return the answer of one server.

        Raises:
            OSError: it cannot be reached, or not in time.
            BadReplyError: its answer is unusable.
            UrlError: its address is none.
        """
        url = Url.parse(address if "://" in address else f"http://{address}/auth")
        parameters = question.parameters()
        if self._method == "post":
            # One-element arrays, because nsqd encodes Go's url.Values.
            values = {key: [value.decode("utf-8", "replace")] for key, value in parameters.items()}
            body = json.dumps(values, separators=(",", ":")).encode()
            reply = await self._client.request_v1("POST", url, body=body, is_repeatable=True)
        else:
            # With a "?" even after another one, as nsqd does.
            url = replace(url, target=f"{url.target}?{urlencode(parameters)}")
            reply = await self._client.request_v1("GET", url)
        if reply.status != HTTPStatus.OK:
            raise BadReplyError(f"status {reply.status}")
        return await _read_answer(reply.json(), now)


class ClientAuth:
    """Hold the client's secret and rights. A check raises the error that the client is sent."""

    def __init__(self, servers: AuthServers | None) -> None:
        """Begin without rights.

        Args:
            servers: None if clients need no AUTH.
        """
        self.state: AuthState | None = None
        # Whether clients must AUTH before they publish or subscribe; asked for every publish.
        self.is_required = servers is not None
        self._servers = servers
        self._secret = b""

    @property
    def is_expired(self) -> bool:
        """Whether rights have been given that have run out."""
        return self.state is not None and self.state.is_expired(time.monotonic())

    def check(self, verb: str, topic: str, channel: str = "") -> None:
        """Check that the client may run a command; expired rights have been renewed before.

        Raises:
            FatalClientError: E_AUTH_FIRST or E_UNAUTHORIZED.
        """
        if self._servers is None:
            return
        if self.state is None or not self.state.permission_count:
            raise FatalClientError(ErrorCode.E_AUTH_FIRST, f"AUTH required before {verb}")
        if not self.state.is_allowed(_PERMISSION_OF[verb], topic, channel):
            text = f"AUTH failed for {verb} on {go_quote(topic)} {go_quote(channel)}"
            raise FatalClientError(ErrorCode.E_UNAUTHORIZED, text)

    def begin(self, secret: bytes) -> None:
        """Remember the secret of an AUTH command.

        Raises:
            FatalClientError: AUTH is disabled, or the client has its rights already.
        """
        if self.state is not None and self.state.permission_count:
            raise FatalClientError(ErrorCode.E_INVALID, "AUTH already set")
        if self._servers is None:
            raise FatalClientError(ErrorCode.E_AUTH_DISABLED, "AUTH disabled")
        self._secret = secret

    def ask(self, remote_ip: str, tls: TlsCodec | None) -> asyncio.Future[AuthState]:
        """Ask the auth servers; give the finished future to `use_answer`."""
        assert self._servers is not None
        common_name = "" if tls is None else tls.peer_common_name
        question = Question(self._secret, remote_ip, common_name, is_tls=tls is not None)
        return self._servers.ask(question)

    def use_answer(self, answer: asyncio.Future[AuthState], remote_address: str) -> None:
        """Give the client the rights of an answer.

        Raises:
            FatalClientError: no auth server gave a usable answer.
        """
        error = answer.exception()
        if isinstance(error, AuthError):
            logger.warning("client(%s) - auth failed: %s", remote_address, error)
            raise FatalClientError(ErrorCode.E_AUTH_FAILED, "AUTH failed") from error
        self.state = answer.result()

    def reply(self) -> bytes:
        """Return the reply to AUTH.

        Raises:
            FatalClientError: the answer grants nothing.
        """
        assert self.state is not None
        if not self.state.permission_count:
            raise FatalClientError(ErrorCode.E_UNAUTHORIZED, "AUTH no authorizations found")
        return self.state.encode_reply()


def _describe(error: Exception) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio has texts of its own
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    if isinstance(error, BadReplyError | UrlError):
        return str(error)
    # The text of any other error may quote the request, of which the secret is part.
    return type(error).__name__


async def _read_answer(answer: object, now: float) -> AuthState:
    ttl_s = _member(answer, "ttl", int, 0)
    if not 0 < ttl_s <= _MAX_TTL_S:
        raise BadReplyError("ttl is not positive")
    entries = _member(answer, "authorizations", list, [])
    # In slices: a large answer must not hold up the clients that need none.
    grants = await gather_slices(_read_grants(entries))
    texts = dict.fromkeys(text for _, texts in grants for text in texts)
    patterns = dict(await gather_slices(_compile(texts)))
    authorizations = await gather_slices(_authorize(*grant, patterns) for grant in grants)
    return AuthState(
        identity=_member(answer, "identity", str, ""),
        identity_url=_member(answer, "identity_url", str, ""),
        authorizations=tuple(authorizations),
        expires_at=now + ttl_s,
    )


def _read_grants(entries: Sequence[object]) -> Iterator[tuple[frozenset[str], list[str]]]:
    """Read the permissions of each entry, and its patterns: of the topic, then of the channels."""
    pattern_count = 0
    for entry in entries:
        permissions = frozenset(_texts(entry, "permissions"))
        if not permissions <= _PERMISSIONS:
            raise BadReplyError("unknown permission")
        texts = [_member(entry, "topic", str, ""), *_texts(entry, "channels")]
        pattern_count += len(texts)
        if pattern_count > MAX_REPLY_USES:
            raise BadReplyError("too many patterns in the reply")
        yield permissions, texts


def _compile(texts: Collection[str]) -> Iterator[tuple[str, Pattern]]:
    if len(texts) > MAX_REPLY_PATTERNS:
        raise BadReplyError("too many patterns in the reply")
    instruction_count = 0
    for text in texts:
        try:
            pattern = Pattern(text)
        except PatternError as error:
            raise BadReplyError(f"bad pattern {text[:100]!r}: {error}") from error
        instruction_count += pattern.instruction_count
        if instruction_count > MAX_REPLY_INSTRUCTIONS:
            raise BadReplyError("the patterns of the reply are too large")
        yield text, pattern


def _authorize(
    permissions: frozenset[str], texts: Sequence[str], patterns: Mapping[str, Pattern]
) -> Authorization:
    topic, *channels = texts
    return Authorization(
        topic=patterns[topic],
        channels=tuple(patterns[channel] for channel in channels),
        permissions=permissions,
    )


def _texts(entry: object, key: str) -> list[str]:
    texts = _member(entry, key, list, [])
    if not all(isinstance(text, str) for text in texts):
        raise BadReplyError(f"{key} are not strings")
    return texts


def _member(value: object, key: str, kind: type[_T], default: _T) -> _T:
    """Return a member of a JSON object, the default if it is absent or null."""
    if not isinstance(value, dict):
        raise BadReplyError("not a JSON object")
    for name, member in value.items():
        # As Go's decoder has it: the case of keys does not matter, and a bool is no number.
        if name.lower() == key and member is not None:
            if type(member) is not kind:
                raise BadReplyError(f"{key} is not of type {kind.__name__}")
            default = member
    return default
