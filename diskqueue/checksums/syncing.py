"""Fsyncs of two files side by side: of a segment and of its checksum file.

Together they take little longer than one of them, since the file system writes its journal once.
Threads are started when they are needed, wait for the next pair, and end with the process.
"""

import os
from queue import SimpleQueue
from threading import Lock, Thread

# So many pairs are at work at a time; more wait for each other.
_MAX_THREADS = 8


class _Request:
    """One fsync that another thread makes."""

    __slots__ = ("error", "fd", "lock")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.error: OSError | None = None
        # Released when the fsync has ended.
        self.lock = Lock()
        self.lock.acquire()


class _Threads:
    """The threads of this process."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[_Request] = SimpleQueue()
        self._lock = Lock()
        self._thread_count = 0
        self._open_count = 0

    def begin(self, fd: int) -> _Request:
        """Have a file fsynced; the caller waits for `lock`, and `end`s."""
        request = _Request(fd)
        with self._lock:
            self._open_count += 1
            if self._thread_count < min(self._open_count, _MAX_THREADS):
                self._thread_count += 1
                Thread(target=self._work, name="diskqueue-fsync", daemon=True).start()
        self._requests.put(request)
        return request

    def end(self, request: _Request) -> None:
        """Wait for an fsync.

        Raises:
            OSError: the file may not be durable.
        """
        request.lock.acquire()
        with self._lock:
            self._open_count -= 1
        if request.error is not None:
            raise request.error

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            try:
                os.fsync(request.fd)
            except OSError as error:
                request.error = error
            request.lock.release()


_threads = _Threads()


def fsync_both(fd: int, other_fd: int) -> None:
    """Make the content of two files durable.

    Raises:
        OSError: one of them may not be durable.
    """
    request = _threads.begin(other_fd)
    try:
        os.fsync(fd)
    finally:
        # Also after an error: the caller closes the descriptor.
        _threads.end(request)


def _forget_threads() -> None:
    """Begin anew in a child of this process, which has no thread but one."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_forget_threads)
