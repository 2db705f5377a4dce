"""Audit: each change with its caller, time, origin and outcome.

The last thousand entries are in memory; with --audit-log each is a JSON line of a file that only
its owner may read. A change that can't be written down is not made. Bodies of messages are in no
entry.
"""

import asyncio
import json
import logging
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from nsqd.config.flags import OptionsError
from nsqd.http.server import HttpError

logger = logging.getLogger(__name__)

MAX_ENTRIES: Final = 1000
MAX_REFUSED: Final = 200
MAX_OUTCOMES: Final = 500
_MAX_TEXT: Final = 300


@dataclass(slots=True)
class Entry:
    """One change, or one that was refused."""

    id: int
    time_ms: int
    user: str
    role: str
    action: str
    remote: str
    user_agent: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    target_count: int = 1
    outcome: str = "running"  # then done, failed or refused
    text: str = ""
    outcomes: list[dict[str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return its members, without the names that it does not have."""
        members: dict[str, object] = {
            "id": self.id,
            "time_ms": self.time_ms,
            "user": self.user,
            "role": self.role,
            "action": self.action,
        }
        for name in ("topic", "channel", "node"):
            if getattr(self, name):
                members[name] = getattr(self, name)
        return members | {
            "target_count": self.target_count,
            "outcome": self.outcome,
            "text": self.text,
            "outcomes": self.outcomes,
            "from": self.remote,
            "user_agent": self.user_agent,
        }


class AuditTrail:
    """The entries, newest last, and the file that gets them."""

    def __init__(self, path: str) -> None:
        """Raises:
        OptionsError: the file can't be written.
        """
        self._path = path
        self._entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._refused: deque[Entry] = deque(maxlen=MAX_REFUSED)
        self._last_id = 0
        self._file: int | None = None
        if path:
            try:
                self._file = _open(path)
            except OSError as error:
                raise OptionsError(f"failed to open --audit-log {path} - {error}") from error

    def new_entry(self, action: str, *, user: str, role: str, remote: str, agent: str) -> Entry:
        """Make an entry; it is kept by `begin`."""
        self._last_id += 1
        now_ms = time.time_ns() // 1_000_000
        return Entry(self._last_id, now_ms, user, role, action, remote, agent[:_MAX_TEXT])

    async def begin(self, entry: Entry) -> None:
        """Note a change that is about to be made.

        Raises:
            HttpError: 503, it can't be written down: it must not be made.
        """
        try:
            await self._write(entry)
        except OSError as error:
            self._log_failure(error)
            raise HttpError(503, "AUDIT_FAILED") from error
        self._entries.append(entry)

    async def finish(self, entry: Entry, outcome: str, text: str = "") -> None:
        """Note how a change ended."""
        entry.outcome = outcome
        entry.text = text[:_MAX_TEXT]
        del entry.outcomes[MAX_OUTCOMES:]
        try:
            await self._write(entry)
        except OSError as error:
            self._log_failure(error)  # The change is made; the next one will be refused.

    def note_refused(self, entry: Entry, text: str) -> None:
        """Note a change that was refused, in memory and in the log of the daemon.

        Strangers can cause these: they push out each other, never the entries of real changes.
        """
        entry.outcome, entry.text = "refused", text
        self._refused.append(entry)
        logger.warning(
            "refused %s user=%r role=%s from=%s", text, entry.user, entry.role, entry.remote
        )

    def page(self, before: int | None, count: int) -> tuple[list[Entry], bool]:
        """Return entries before an id, newest first, and whether there are more."""
        every = sorted((*self._entries, *self._refused), key=lambda each: -each.id)
        older = [each for each in every if before is None or each.id < before]
        return older[:count], len(older) > count

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _log_failure(self, error: OSError) -> None:
        logger.error("audit log %s: %s", self._path, error.strerror or error)

    async def _write(self, entry: Entry) -> None:
        if self._file is None:
            return
        line = json.dumps(entry.as_json(), separators=(",", ":")).encode() + b"\n"
        await asyncio.to_thread(self._append, line)

    def _append(self, line: bytes) -> None:
        """Write a line, to a new file if the old one was moved away.

        Raises:
            OSError: it can't be written as a whole.
        """
        assert self._file is not None
        if _identify(self._path) != (os.fstat(self._file).st_dev, os.fstat(self._file).st_ino):
            fresh = _open(self._path)
            os.close(self._file)
            self._file = fresh
        if os.write(self._file, line) != len(line):
            raise OSError("the disk is full")


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _identify(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
