"""Memory for messages: used again when others have left it, and cleared ahead of its use.

The kernel clears each page that it gives out. When messages of a kilobyte and more come faster than
they are consumed, that is most of the processor time of a publish, and all of it is the loop's. So
glibc keeps what was freed, and a thread asks the kernel for the pages of a heap that grows fast
before a message touches them, many at a time: bodies of 100 KB cost 67 us instead of 75, and the
loop has less than a half of them.

Without glibc, without Linux 5.14 or without the compiled functions there is nothing of that.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable

try:
    from nsqd.runtime._compiled import find_heap_end, populate_heap
except ImportError:
    has_populate = False
else:
    has_populate = True

# How much memory that was freed the process keeps at most, and how much it keeps when it gives the
# rest back to the kernel. The heap grows by the latter.
MAX_FREED_BYTES = 128 * 1024 * 1024
KEPT_FREED_BYTES = 64 * 1024 * 1024
# The parameters of glibc's `mallopt`, from its malloc.h, and the most that it takes for the last.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MAX_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024

# A heap that grows again within this time grows fast.
FAST_S = 1.0
# Pages that one call asks for: a growth of the heap waits until it has returned, 0.1 ms.
_STEP_BYTES = 256 * 1024
# How often the thread looks for more, and for how long: 0.3 ms, and 0.1 s.
_NAP_US = 300
_MAX_NAPS = 300


def keep_freed_memory() -> bool:
    """Have large bodies and reads use memory again that others have left; return whether they do.

    glibc gives the kernel back whatever more than 256 KB or so is free at the end of its heap. The
    kernel clears each page that it gives out again, which was half of the processor time of bodies
    of 100 KB in a queue that fills and empties. No effect with another C library, or if the
    operator has set parameters of malloc in the environment.
    """
    is_set = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if is_set or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, MAX_FREED_BYTES)
    mallopt(_M_TOP_PAD, KEPT_FREED_BYTES)
    return True


class MemoryAhead:
    """Watches the end of the heap, and has a thread clear what a fast growth has added.

    The process may have `KEPT_FREED_BYTES` more than it uses then.
    """

    def __init__(self, run: Callable[[Callable[[], object]], object] | None = None) -> None:
        """Args: run: calls a function in a thread."""
        self._run = run or _run_in_thread
        self._end = find_heap_end() if has_populate else 0
        self._grown_at = -FAST_S
        self._is_at_work = False

    def look(self) -> None:
        """See whether the heap has grown: to be called now and then, on the loop."""
        if not has_populate or self._is_at_work:
            return
        before, self._end = self._end, find_heap_end()
        if self._end <= before:
            return
        grown_at, self._grown_at = self._grown_at, time.monotonic()
        if self._grown_at - grown_at < FAST_S:
            self._is_at_work = True
            self._run(lambda: self._populate(before))

    def _populate(self, start: int) -> None:
        """Clear memory until the heap has not grown for 0.1 s."""
        try:
            populate_heap(start, step_bytes=_STEP_BYTES, nap_us=_NAP_US, max_naps=_MAX_NAPS)
        finally:
            self._end = find_heap_end()
            self._is_at_work = False


def _run_in_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="memory-ahead", daemon=True).start()
