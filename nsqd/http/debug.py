"""/debug: what goes on inside, for whoever has to find out why a daemon is slow or large.

The paths are those of the Go daemon's profiler pages; what they give is what Python has.
"""

import asyncio
import ctypes
import gc
import io
import logging
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial

from nsqd.config.logs import redact
from nsqd.http.arguments import parse_count
from nsqd.http.profiler import Profiler
from nsqd.http.server import EMPTY, HttpError, Request, Response, Router, Style
from nsqd.runtime.slices import gather_slices
from nsqd.runtime.stall_watch import StallWatch

logger = logging.getLogger(__name__)

DEFAULT_PROFILE_S = 30
MAX_PROFILE_S = 300
MAX_BLOCK_RATE_NS = 3600 * 10**9  # nothing stands still for longer, and timers have limits
HEAP_TYPES_SHOWN = 100
OBJECTS_PER_PART = 2000

_BINARY = "application/octet-stream"
_INDEX = """/debug/pprof/

cmdline       the command line
profile       CPU profile of ?seconds=30, for python -m pstats; ?format=collapsed for flame graphs
heap          objects by type
goroutine     what all tasks and threads are doing
block         where the event loop was held up, after PUT /debug/setblockrate?rate=<nanoseconds>
threadcreate  threads
"""


class DebugRoutes:
    """Shows the inside of this process."""

    # Those that a GET asks for; a profile takes time from everybody.
    PATHS = (
        "/debug/pprof/",
        *(f"/debug/pprof/{name}" for name in ("cmdline", "profile", "heap", "goroutine")),
        *(f"/debug/pprof/{name}" for name in ("block", "threadcreate", "symbol")),
    )

    def __init__(self, program: str) -> None:
        """Args: program: what the files are named after."""
        self._program = program
        self._is_profiling = False
        self._stalls: StallWatch | None = None

    def add_to(self, router: Router) -> None:
        """Add the routes."""
        add = partial(router.add, style=Style.PLAIN)
        add("GET", "/debug/pprof/", lambda _: Response.text(_INDEX))
        add("GET", "/debug/pprof/cmdline", lambda _: Response.text(describe_command_line()))
        add("GET", "/debug/pprof/profile", self._profile)
        add("GET", "/debug/pprof/heap", self._heap)
        add("GET", "/debug/pprof/goroutine", lambda _: Response.text(describe_stacks()))
        add("GET", "/debug/pprof/block", self._block)
        add("GET", "/debug/pprof/threadcreate", lambda _: Response.text(describe_threads()))
        # Go's tools ask here whether addresses need names; our stacks have them already.
        for method in ("GET", "POST"):
            add(method, "/debug/pprof/symbol", lambda _: Response.text("num_symbols: 0\n"))
        add("PUT", "/debug/setblockrate", self._set_block_rate)
        add("POST", "/debug/freememory", self._free_memory)

    async def _profile(self, request: Request) -> Response:
        seconds = request.find("seconds")
        duration_s = DEFAULT_PROFILE_S if seconds is None else parse_count(seconds, MAX_PROFILE_S)
        if duration_s is None:
            raise HttpError(400, f"seconds must be 1 to {MAX_PROFILE_S}")
        if self._is_profiling:
            raise HttpError(409, "a profile is being made")
        profiler = Profiler()
        self._is_profiling = True
        profiler.start()
        try:
            await asyncio.sleep(duration_s)
        finally:
            self._is_profiling = False
            profile = profiler.stop()
        if request.find("format") == "collapsed":
            return _download(f"{self._program}.collapsed", profile.collapsed())
        return _download(f"{self._program}.pstats", profile.pstats())

    async def _heap(self, _request: Request) -> Response:
        objects = gc.get_objects()
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()

        def count(start: int) -> None:
            for item in objects[start : start + OBJECTS_PER_PART]:
                name = f"{type(item).__module__}.{type(item).__qualname__}"
                counts[name] += 1
                sizes[name] += sys.getsizeof(item, 0)

        await gather_slices(map(count, range(0, len(objects), OBJECTS_PER_PART)))
        lines = [
            f"allocated blocks: {sys.getallocatedblocks()}\n",
            f"objects known to the garbage collector: {len(objects)}\n\n",
            f"{'count':>10} {'bytes':>12}  type (without what it refers to)\n",
        ]
        lines += [
            f"{counts[name]:>10} {size:>12}  {name}\n"
            for name, size in sizes.most_common(HEAP_TYPES_SHOWN)
        ]
        return Response.text("".join(lines))

    def _block(self, _request: Request) -> Response:
        if self._stalls is None:
            return Response.text("off; PUT /debug/setblockrate?rate=<nanoseconds> turns it on\n")
        return Response.text(self._stalls.describe())

    def _set_block_rate(self, request: Request) -> Response:
        text = request.find("rate") or ""
        try:
            rate_ns = int(text)
        except ValueError as error:
            raise HttpError(400, f"invalid block rate : {text}") from error
        if self._stalls is not None:
            self._stalls.close()
            self._stalls = None
        if rate_ns > 0:
            threshold_s = min(rate_ns, MAX_BLOCK_RATE_NS) / 1e9
            self._stalls = StallWatch(asyncio.get_running_loop(), threshold_s)
        return EMPTY

    async def _free_memory(self, _request: Request) -> Response:
        gc.collect()
        trim = find_malloc_trim()
        if trim is not None:
            await asyncio.to_thread(trim, 0)
        return EMPTY


def find_malloc_trim() -> Callable[[int], int] | None:
    """Return what gives free memory back to the system; None where the C library has no such."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


def describe_stacks() -> str:
    """Return the stacks of all tasks of this loop and of all threads."""
    out = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out.write(f"task {task.get_name()}\n")
        task.print_stack(file=out)
        out.write("\n")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way
        out.write(f"thread {names.get(ident, '?')} {ident}\n")
        out.write("".join(traceback.format_stack(frame)))
        out.write("\n")
    return out.getvalue()


def describe_command_line() -> str:
    """Return the arguments, without the passwords that they may hold."""
    return "\0".join(map(redact, sys.orig_argv))


def describe_threads() -> str:
    """Return a line per thread."""
    return "".join(
        f"{thread.name} id: {thread.native_id} daemon: {thread.daemon}\n"
        for thread in threading.enumerate()
    )


def _download(name: str, body: bytes) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body=body, content_type=_BINARY, headers=headers)
