"""What a power cut can leave of a directory, from the journal of what was done to it.

What is certain after a cut is only what a *finished* fsync covers: the content that a file had when
its fsync began, the names that a directory had when its own began. Of everything else a part may be
there, chosen by chance:

* names: creations, renames and deletions as far as some moment, or scattered, where only those of
  one name keep their order; a rename is done or not done;
* content: nothing that was written since, all of it, a beginning with a torn last write, the right
  size with zeros in it, or any mixture of old and new blocks of 4 KiB or sectors of 512 bytes: a
  write that was torn. What an fsync failed to write
  counts as never written, whatever a later one says: kernels drop it and forget.

Those who hold the promise of `--sync-every=1` must live with any of these.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.faults.journal import Record

BLOCK_BYTES = 4096
SECTOR_BYTES = 512
_WAYS = ("lost", "all", "torn", "zeros", "blocks", "sectors", "tail")


@dataclass(slots=True)
class _File:
    """An inode: its changes, and how many of them are certain."""

    changes: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut off there
    durable_count: int = 0
    # The changes that a failed fsync was to cover.
    dropped: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _NameChange:
    """A change of the directory: what it did, to which names, and whether it is certain."""

    operation: str
    path: str
    goal: str = ""
    inode: int = 0
    is_durable: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.goal) if self.goal else (self.path,)

    def is_in(self, directory: str) -> bool:
        changed = (self.goal,) if self.operation == "link" else self.paths
        return any(path.rpartition("/")[0] == directory for path in changed)


class PowerCut:
    """The power fails at a position of the journal."""

    def __init__(self, records: Iterable[Record], position: int) -> None:
        self._files: dict[int, _File] = {}
        self._names: list[_NameChange] = []
        # The fsyncs under way: whose, and how much had been done when they began.
        self._syncs: dict[int, tuple[int | str, int]] = {}
        for record in records:
            if record.position >= position and record.name != "initial":
                break
            handler = _HANDLERS.get(record.name)
            if handler is not None:
                handler(self, *record.values)

    def rebuild(self, target: Path, chance: random.Random) -> None:
        """Write a directory as it may be found when the power is back."""
        target.mkdir(parents=True)
        is_harsh = chance.random() < 0.4  # all that is not certain is gone
        names: dict[str, int] = {}
        for change in self._choose_names(chance, is_harsh=is_harsh):
            _apply_name(names, change)
        for path, inode in names.items():
            if inode == 0:
                (target / path).mkdir(parents=True, exist_ok=True)
        for path, inode in names.items():
            if inode:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                content = _choose_content(self._files[inode], chance, () if is_harsh else _WAYS)
                (target / path).write_bytes(content)

    def _choose_names(self, chance: random.Random, *, is_harsh: bool) -> list[_NameChange]:
        pending = [change for change in self._names if not change.is_durable]
        if is_harsh:
            kept: list[_NameChange] = []
        elif chance.random() < 0.7:
            kept = pending[: chance.randint(0, len(pending))]
        else:
            kept = []
            missed: set[str] = set()
            for change in pending:
                if missed.isdisjoint(change.paths) and chance.random() < 0.6:
                    kept.append(change)
                else:
                    missed.update(change.paths)
        chosen = {id(change) for change in kept}
        return [change for change in self._names if change.is_durable or id(change) in chosen]

    # --- the records

    def _note_initial(self, path: str, inode: int, content: bytes) -> None:
        self._files[inode] = _File([(0, content)], 1)
        self._names.append(_NameChange("create", path, inode=inode, is_durable=True))

    def _note_create(self, path: str, inode: int) -> None:
        self._files[inode] = _File()
        self._names.append(_NameChange("create", path, inode=inode))

    def _note_mkdir(self, path: str) -> None:
        self._names.append(_NameChange("create", path))

    def _note_write(self, inode: int, offset: int, data: bytes) -> None:
        self._files[inode].changes.append((offset, data))

    def _note_truncate(self, inode: int, size: int) -> None:
        self._files[inode].changes.append((size, None))

    def _note_rename(self, path: str, goal: str) -> None:
        self._names.append(_NameChange("rename", path, goal))

    def _note_link(self, path: str, goal: str) -> None:
        inode = 0
        for change in self._names:
            if path in (change.path, change.goal) and change.inode:
                inode = change.inode
        self._names.append(_NameChange("link", path, goal, inode))

    def _note_unlink(self, path: str) -> None:
        self._names.append(_NameChange("unlink", path))

    def _note_fsync(self, token: int, whose: int | str) -> None:
        done = len(self._names if isinstance(whose, str) else self._files[whose].changes)
        self._syncs[token] = (whose, done)

    def _note_failed(self, inode: int) -> None:
        if inode:
            file = self._files[inode]
            file.dropped.update(range(file.durable_count, len(file.changes)))

    def _note_synced(self, token: int) -> None:
        whose, done = self._syncs.pop(token)
        if isinstance(whose, int):
            file = self._files[whose]
            file.durable_count = max(file.durable_count, done)
            return
        for change in self._names[:done]:
            if change.is_in(whose):
                change.is_durable = True


_HANDLERS: dict[str, Any] = {
    name.removeprefix("_note_"): getattr(PowerCut, name)
    for name in dir(PowerCut)
    if name.startswith("_note_")
}
_HANDLERS["rmdir"] = _HANDLERS["unlink"]


def _choose_content(file: _File, chance: random.Random, ways: Sequence[str]) -> bytes:
    """What is found of a file; without ways, only what is certain."""
    durable = [
        change
        for index, change in enumerate(file.changes[: file.durable_count])
        if index not in file.dropped
    ]
    pending = file.changes[file.durable_count :]
    old = _content_after(durable)
    if not pending or not ways:
        return old
    new = _content_after(file.changes)
    way = chance.choice(ways)
    if way == "lost":
        return old
    if way == "all":
        return new
    if way == "torn":
        return _content_after([*durable, *_tear(pending, chance)])
    if way == "zeros":
        return _content_after([*durable, *((at, _blank(data)) for at, data in pending)])
    if way == "tail":
        return _tear_tail(old, new, chance)
    return _mix_blocks(old, new, chance, BLOCK_BYTES if way == "blocks" else SECTOR_BYTES)


def _apply_name(names: dict[str, int], change: _NameChange) -> None:
    if change.operation == "create":
        names[change.path] = change.inode
    elif change.operation == "link":
        names[change.goal] = change.inode
    elif change.operation == "unlink":
        names.pop(change.path, None)
    elif change.path in names:
        names[change.goal] = names.pop(change.path)


def _content_after(changes: Iterable[tuple[int, bytes | None]]) -> bytes:
    content = bytearray()
    for offset, data in changes:
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        if data is None:
            del content[offset:]
        else:
            content[offset : offset + len(data)] = data
    return bytes(content)


def _tear(
    pending: Sequence[tuple[int, bytes | None]], chance: random.Random
) -> list[tuple[int, bytes | None]]:
    """A beginning of the changes, the last one done in part."""
    count = chance.randrange(len(pending))
    offset, data = pending[count]
    torn = data if data is None else data[: chance.randint(0, len(data))]
    return [*pending[:count], (offset, torn)]


def _blank(data: bytes | None) -> bytes | None:
    return None if data is None else bytes(len(data))


def _tear_tail(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """The new size, and from some sector behind the old content on nothing but zeros."""
    first = len(old) // SECTOR_BYTES
    start = chance.randint(first, max(first, len(new) // SECTOR_BYTES)) * SECTOR_BYTES
    start = max(start, min(len(old), len(new)))
    return new[:start].ljust(len(new), b"\0")


def _mix_blocks(old: bytes, new: bytes, chance: random.Random, block_bytes: int) -> bytes:
    """The new size, and each block either new or as it was, which is zeros where there was none."""
    content = bytearray(new)
    before = old.ljust(len(new), b"\0")
    for start in range(0, len(new), block_bytes):
        if chance.random() < 0.5:
            end = min(start + block_bytes, len(new))
            content[start:end] = before[start:end]
    return bytes(content)


class SendIndex:
    """When the daemon sent what, by the ports of its clients."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._sends: dict[int, list[tuple[int, int]]] = {}
        for record in records:
            if record.name == "send":
                port, total = record.values
                self._sends.setdefault(port, []).append((record.position, total))

    def find(self, port: int, end: int, since: int) -> int:
        """Where the first `end` bytes had been sent to a client, as far as is known from `since`.

        Raises:
            LookupError: the client has read what was never sent: the journal is not complete.
        """
        for position, total in self._sends.get(port, ()):
            if position >= since and total >= end:
                return position
        raise LookupError(f"nothing in the journal sent byte {end} to port {port}")
