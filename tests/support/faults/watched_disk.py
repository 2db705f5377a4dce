"""WatchedDisk: stands between a process and its data directory, to record, fail, tear and kill.

It replaces functions of `os`, so the code under test has no part in it but for calling them as
`os.x`. An audit hook sees whether something goes round it (the built-in `open`, for one, writes
without `os`), and ends the process with `EXIT_BYPASSED`: a test that missed operations is no test.

What changes the directory happens under a lock together with its record, so that the journal has
the true order; an fsync runs outside, and has a record where it begins and one where it ended.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tests.support.faults.journal import JournalWriter
from tests.support.faults.plan import SEND, STALL_S, Rule, kind_of, pair_ports

EXIT_BYPASSED = 97
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_HTTP_OK = b"HTTP/1.1 200 OK"


@dataclass(slots=True)
class _Handle:
    """An open descriptor."""

    path: str  # relative to the data directory
    inode: int  # 0 for a directory
    position: int = 0


class WatchedDisk:
    """The data directory as the process under test sees it."""

    def __init__(
        self,
        root: str,
        rules: list[Rule],
        journal: JournalWriter | None = None,
        switch: str | None = None,
    ) -> None:
        """Args: switch: while there is no such file, no operation is counted and nothing fails."""
        self._root = os.path.realpath(root)
        self._rules = rules
        self._journal = journal
        self._switch = switch
        self._lock = threading.RLock()
        self._handles: dict[int, _Handle] = {}
        self._inodes: dict[str, int] = {}
        self._next_inode = 1
        self._next_token = 1
        self._sent: WeakKeyDictionary[socket.socket, list[int]] = WeakKeyDictionary()
        self._own = threading.local()  # `.is_inside`: this thread's call comes from here
        self._real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}

    def install(self) -> None:
        """Take the place of `os`, for good."""
        self._note_initial("")
        for name in (
            *("open", "close", "dup", "write", "pwrite", "pwritev", "fsync", "fdatasync"),
            *("ftruncate", "truncate", "rename", "replace", "unlink", "remove", "mkdir", "rmdir"),
            "link",
            *("read", "pread", "stat", "listdir", "scandir", "statvfs"),
        ):
            setattr(os, name, getattr(self, f"_{name}"))
        sys.addaudithook(self._audit)
        if self._journal is not None or any(rule.operation == SEND for rule in self._rules):
            self._watch_sockets()

    def _note_initial(self, path: str) -> None:
        for name in sorted(os.listdir(os.path.join(self._root, path))):
            inner = os.path.join(path, name)
            full = os.path.join(self._root, inner)
            if os.path.isdir(full):
                self._record("initial", inner, 0, b"")
                self._note_initial(inner)
            else:
                with open(full, "rb") as file:
                    self._record("initial", inner, self._new_inode(inner), file.read())

    # --- what goes wrong

    def _choose(self, operation: str, kind: str) -> Rule | None:
        """The rule for this operation, if one hits it."""
        if not self._rules:
            return None
        with self._lock:
            if self._switch is not None and not self._exists(self._switch):
                return None
            hits = [rule for rule in self._rules if rule.hits(operation, kind)]
        return hits[0] if hits else None

    def _exists(self, path: str) -> bool:
        try:
            self._real["stat"](path)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _step(self, operation: str, path: str, *, is_locked: bool = True) -> Iterator[Rule | None]:
        """One operation: killed before or after, failed, or told which rule it has to obey."""
        rule = self._choose(operation, kind_of(path))
        if rule is not None and rule.action == "before":
            _die()
        if rule is not None and rule.error_number is not None:
            raise OSError(rule.error_number, os.strerror(rule.error_number), path)
        if rule is not None and rule.action == "stall":
            time.sleep(STALL_S)
        with self._lock if is_locked else contextlib.nullcontext():
            was_inside = getattr(self._own, "is_inside", False)
            self._own.is_inside = True
            try:
                yield rule
            finally:
                self._own.is_inside = was_inside
        if rule is not None and rule.action == "after":
            _die()

    def _record(self, name: str, *values: str | int | bytes) -> None:
        if self._journal is not None:
            self._journal.add(name, *values)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if getattr(self._own, "is_inside", False):
            return
        if event == "open":
            path, _, flags = arguments
            is_write = bool(flags & _WRITE_FLAGS)
        elif event in ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link"):
            path, is_write = arguments[0], True
        else:
            return
        if is_write and self._find(path) is not None:
            self._real["write"](2, f"went round the watched disk: {event} {path}\n".encode())
            self._real["_exit"](EXIT_BYPASSED)

    # --- paths and descriptors

    def _find(self, path: object) -> str | None:
        """The path inside the data directory, or None if it is somewhere else."""
        if isinstance(path, int):
            handle = self._handles.get(path)
            return None if handle is None else handle.path
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return None
        full = os.path.abspath(path)
        if full == self._root:
            return ""
        return full[len(self._root) + 1 :] if full.startswith(f"{self._root}/") else None

    def _new_inode(self, path: str) -> int:
        inode = self._inodes[path] = self._next_inode
        self._next_inode += 1
        return inode

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._find(path)
        if place is None or dir_fd is not None:
            fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
            return fd
        is_new = bool(flags & os.O_CREAT) and place not in self._inodes
        with self._step("create" if is_new else "open", place):
            fd = self._real["open"](path, flags, mode)
            if is_new:
                self._record("create", place, self._new_inode(place))
            inode = self._inodes.get(place, 0)
            if flags & os.O_TRUNC and not is_new:
                self._record("truncate", inode, 0)
            self._handles[fd] = _Handle(place, inode)
        return fd

    def _close(self, fd: int) -> None:
        # Before the number is free for others.
        self._handles.pop(fd, None)
        self._real["close"](fd)

    def _dup(self, fd: int) -> int:
        with self._lock:
            copy: int = self._real["dup"](fd)
            if fd in self._handles:
                self._handles[copy] = self._handles[fd]
        return copy

    # --- changes of content

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        handle = self._handles.get(fd)
        if handle is None:
            count: int = self._real["pwrite"](fd, data, offset)
            return count
        with self._step("write", handle.path) as rule:
            content = bytes(data)
            if rule is not None and rule.action == "lie":
                return len(content)
            if rule is not None and rule.action in ("tear", "short"):
                content = content[: max(1, len(content) * 2 // 3)]
            count = self._real["pwrite"](fd, content, offset)
            self._record("write", handle.inode, offset, content[:count])
            if rule is not None and rule.action == "tear":
                _die()
        return count

    def _pwritev(self, fd: int, buffers: Any, offset: int) -> int:
        if fd not in self._handles:
            count: int = self._real["pwritev"](fd, buffers, offset)
            return count
        return self._pwrite(fd, b"".join(buffers), offset)

    def _write(self, fd: int, data: Any) -> int:
        handle = self._handles.get(fd)
        if handle is None:
            count: int = self._real["write"](fd, data)
            return count
        with self._lock:
            offset: int = self._real["lseek"](fd, 0, os.SEEK_CUR)
            if _is_appending(fd):
                offset = self._real["fstat"](fd).st_size
            count = self._pwrite(fd, data, offset)
            self._real["lseek"](fd, offset + count, os.SEEK_SET)
        return count

    def _ftruncate(self, fd: int, size: int) -> None:
        handle = self._handles.get(fd)
        if handle is None:
            self._real["ftruncate"](fd, size)
            return
        with self._step("truncate", handle.path):
            self._real["ftruncate"](fd, size)
            self._record("truncate", handle.inode, size)

    def _truncate(self, path: Any, size: int) -> None:
        place = self._find(path)
        if place is None:
            self._real["truncate"](path, size)
            return
        with self._step("truncate", place):
            self._real["truncate"](path, size)
            self._record("truncate", self._inodes[place], size)

    def _fsync(self, fd: int) -> None:
        handle = self._handles.get(fd)
        if handle is None:
            self._real["fsync"](fd)
            return
        try:
            with self._step("fsync", handle.path, is_locked=False) as rule:
                if rule is None or rule.action != "lie":
                    self._sync(fd, handle)
        except OSError:
            self._record("failed", handle.inode)
            raise

    def _sync(self, fd: int, handle: _Handle) -> None:
        with self._lock:
            token = self._next_token
            self._next_token += 1
            self._record("fsync", token, handle.inode or handle.path)
        self._real["fsync"](fd)
        self._record("synced", token)

    def _fdatasync(self, fd: int) -> None:
        # The sizes of files are part of it, and that is all that the model knows of.
        self._fsync(fd)

    # --- changes of names

    def _rename(self, source: Any, target: Any) -> None:
        place, goal = self._find(source), self._find(target)
        if place is None or goal is None:
            self._real["replace"](source, target)
            return
        with self._step("rename", goal):
            self._real["replace"](source, target)
            self._inodes[goal] = self._inodes.pop(place)
            self._record("rename", place, goal)

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._find(path)
        if place is None or dir_fd is not None:
            self._real["unlink"](path, dir_fd=dir_fd)
            return
        with self._step("unlink", place):
            self._real["unlink"](path)
            self._inodes.pop(place, None)
            self._record("unlink", place)

    _remove = _unlink

    def _link(self, source: Any, target: Any) -> None:
        place, goal = self._find(source), self._find(target)
        if place is None or goal is None:
            self._real["link"](source, target)
            return
        with self._step("link", goal):
            self._real["link"](source, target)
            self._inodes[goal] = self._inodes[place]
            self._record("link", place, goal)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._find(path)
        if place is None or dir_fd is not None:
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            return
        with self._step("mkdir", place):
            self._real["mkdir"](path, mode)
            self._record("mkdir", place)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._find(path)
        if place is None or dir_fd is not None:
            self._real["rmdir"](path, dir_fd=dir_fd)
            return
        with self._step("rmdir", place):
            self._real["rmdir"](path)
            self._record("rmdir", place)

    # --- questions, which can only fail

    def _ask(self, operation: str, name: str, path: Any, *arguments: Any, **options: Any) -> Any:
        place = self._find(path)
        if place is None:
            return self._real[name](path, *arguments, **options)
        with self._step(operation, place):
            return self._real[name](path, *arguments, **options)

    def _read(self, fd: int, size: int) -> Any:
        return self._ask("read", "read", fd, size)

    def _pread(self, fd: int, size: int, offset: int) -> Any:
        return self._ask("read", "pread", fd, size, offset)

    def _stat(self, path: Any, **options: Any) -> Any:
        return self._ask("stat", "stat", path, **options)

    def _listdir(self, path: Any = ".") -> Any:
        return self._ask("list", "listdir", path)

    def _scandir(self, path: Any = ".") -> Any:
        return self._ask("list", "scandir", path)

    def _statvfs(self, path: Any) -> Any:
        return self._ask("statvfs", "statvfs", path)

    # --- what clients are told

    def _watch_sockets(self) -> None:
        """See each send of the sockets of asyncio's own loop; uvloop's are out of reach."""
        send: Callable[..., int] = socket.socket.send

        def watched(sock: socket.socket, data: bytes, *flags: int) -> int:
            content = bytes(data)
            kind = "ok" if _OK_FRAME in content or content.startswith(_HTTP_OK) else "other"
            rule = self._choose(SEND, kind)
            if rule is not None and rule.action == "before":
                _die()
            with self._lock:
                # Noted before: a kill in between must not leave a client with what nobody sent.
                sent = self._note_send(sock, len(content))
                count = send(sock, data, *flags)
                sent[1] += count
            if rule is not None and rule.action == "after":
                _die()
            return count

        socket.socket.send = watched  # type: ignore[assignment, method-assign]

    def _note_send(self, sock: socket.socket, count: int) -> list[int]:
        """Note what is about to be sent; returns the client's port and the bytes sent before."""
        sent = self._sent.get(sock)
        if sent is None:
            is_internet = sock.family in (socket.AF_INET, socket.AF_INET6)
            ports = 0
            if is_internet:
                ports = pair_ports(sock.getsockname()[1], sock.getpeername()[1])
            sent = self._sent[sock] = [ports, 0]
        self._record("send", sent[0], sent[1] + count)
        return sent


def _is_appending(fd: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
