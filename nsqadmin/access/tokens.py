"""Tokens: those that let a user sign in, the sessions of users, and a bound on wrong guesses.

The file holds one token, for admins, or a line `role token name` for each user; it is looked at
again every second, so that a change needs no restart. Sessions are in memory: a restart, a sign-out
or a change of the token's line ends them. Nothing here logs a token.
"""

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nsqadmin.access.roles import ROLES, Caller, Role
from nsqd.config.flags import OptionsError

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
MAX_FILE_BYTES: Final = 1 << 20
MAX_TOKENS: Final = 10_000
MAX_TOKEN_BYTES: Final = 4096
SESSION_S: Final = 8 * 3600.0
MAX_SESSIONS: Final = 10_000
MAX_ATTEMPTS: Final = 20
ATTEMPT_WINDOW_S: Final = 60.0
MAX_REMOTES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the file; of the token only its digest is kept."""

    digest: bytes
    caller: Caller


class Tokens:
    """The tokens of a file."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises:
        OptionsError: the file can't be read, or a line of it is wrong.
        """
        self._path = path
        self._clock = clock
        self._checked_at = clock()
        self._identity = _identify(path)
        self._entries = _read_file(path)

    def find(self, token: bytes) -> Caller | None:
        """Return whose token it is; it takes the same time for every wrong one."""
        entry = self._find_entry(hashlib.sha256(token).digest())
        return None if entry is None else entry.caller

    def is_valid(self, digest: bytes, caller: Caller) -> bool:
        """Whether a token that was good is still that caller's."""
        entry = self._find_entry(digest)
        return entry is not None and entry.caller == caller

    def _find_entry(self, digest: bytes) -> _Entry | None:
        self._reload()
        found = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        return found

    def _reload(self) -> None:
        now = self._clock()
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        identity = _identify(self._path)
        if identity == self._identity:
            return
        self._identity = identity
        try:
            self._entries = _read_file(self._path)
        except OptionsError as error:
            logger.warning("HTTP: keeping the old tokens: %s", error)
        else:
            logger.info("HTTP: token file changed, the new tokens hold")


@dataclass(frozen=True, slots=True)
class _Session:
    caller: Caller
    token_digest: bytes
    deadline: float


class Sessions:
    """The users that are signed in, by the digest of the cookie."""

    def __init__(self, tokens: Tokens, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def open(self, token: bytes, caller: Caller) -> str:
        """Begin a session; return the value of its cookie."""
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        deadline = self._clock() + SESSION_S
        digest = hashlib.sha256(token).digest()
        self._sessions[_digest(cookie)] = _Session(caller, digest, deadline)
        return cookie

    def find(self, cookie: str) -> Caller | None:
        """Return the user of a cookie."""
        session = self._sessions.get(_digest(cookie))
        if session is None:
            return None
        is_good = self._clock() < session.deadline and self._tokens.is_valid(
            session.token_digest, session.caller
        )
        if not is_good:
            self.close(cookie)
            return None
        return session.caller

    def close(self, cookie: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(cookie), None)


class Attempts:
    """How many wrong tokens came from each address, in the last minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Host -> the start of its minute and the wrong tokens in it.
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def is_blocked(self, host: str) -> bool:
        """Whether an address has guessed too often."""
        began, count = self._counts.get(host, (0.0, 0))
        return count >= MAX_ATTEMPTS and self._clock() - began < ATTEMPT_WINDOW_S

    def note_wrong(self, host: str) -> None:
        """Count a wrong token; the one that is too many begins a minute of silence."""
        now = self._clock()
        began, count = self._counts.pop(host, (now, 0))
        if now - began >= ATTEMPT_WINDOW_S:
            began, count = now, 0
        count += 1
        if count == MAX_ATTEMPTS:
            began = now
        while len(self._counts) >= MAX_REMOTES:
            self._counts.popitem(last=False)
        self._counts[host] = (began, count)


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()


def _identify(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_file(path: str) -> tuple[_Entry, ...]:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OptionsError(f"failed to read --http-auth-token-file - {error}") from error
    if len(content) > MAX_FILE_BYTES or not content.isascii():
        raise OptionsError(f"--http-auth-token-file {path} is too large, or not of plain text")
    lines = [line.split() for line in content.splitlines()]
    lines = [line for line in lines if line and not line[0].startswith(b"#")]
    if len(lines) == 1 and len(lines[0]) == 1:
        return (_entry(lines[0][0], Caller("admin", Role.ADMIN), path),)
    entries = [_read_line(number, line, path) for number, line in enumerate(lines, 1)]
    if not entries or len(entries) > MAX_TOKENS:
        raise OptionsError(f"--http-auth-token-file {path} holds no token, or too many")
    if len({entry.digest for entry in entries}) < len(entries):
        raise OptionsError(f"--http-auth-token-file {path} holds a token twice")
    return tuple(entries)


def _read_line(number: int, words: list[bytes], path: str) -> _Entry:
    role = ROLES.get(words[0].decode())
    if role is None or len(words) != 3:
        raise OptionsError(
            f"--http-auth-token-file {path}: line {number} is not `role token name`, with the role"
            f" one of {', '.join(ROLES)}"
        )
    return _entry(words[1], Caller(words[2].decode(), role), path)


def _entry(token: bytes, caller: Caller, path: str) -> _Entry:
    if len(token) > MAX_TOKEN_BYTES:
        raise OptionsError(f"--http-auth-token-file {path} holds a token that is too long")
    return _Entry(hashlib.sha256(token).digest(), caller)
