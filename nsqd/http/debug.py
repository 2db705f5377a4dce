"""/debug: stacks, a CPU profile, allocations and stalls of this process, for its operator.

The paths are those of the Go daemon's profiler pages; the contents are Python's. The profiler is
our own, as it must not slow down the daemon that it measures: a loop of small calls takes as long
under it as without, 4.4 times as long under cProfile and pyinstrument, 40 times under yappi, which
all hook every call. py-spy is as cheap, but needs the right to trace the daemon, which containers
refuse.
"""

import asyncio
import ctypes
import gc
import io
import marshal
import sys
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType

from nsqd.config.redaction import redact_argument
from nsqd.http.arguments import parse_count
from nsqd.http.server import EMPTY, HttpError, Request, Response, Router, Style
from nsqd.runtime.loop_watch import Call, LoopWatch, Observer, Stall
from nsqd.runtime.slices import gather_slices, join_slices

DEFAULT_PROFILE_S = 30
MAX_PROFILE_S = 300
PROFILE_INTERVAL_S = 0.01
MAX_STACK_DEPTH = 128
MIN_STALL_S = 0.001
MAX_STALL_NS = 3600 * 10**9  # No loop stands still for longer, and timers have limits.
MAX_STALL_STACKS = 200
HEAP_TYPES_SHOWN = 100
OBJECTS_PER_PART = 2000

_INDEX = """/debug/pprof/

cmdline       the command line
profile       CPU profile of ?seconds=30, for python -m pstats; ?format=collapsed for flame graphs
heap          objects by type
goroutine     stacks of all tasks and threads
block         where the event loop was held up, after PUT /debug/setblockrate?rate=<nanoseconds>
threadcreate  threads
"""

Function = tuple[str, int, str]  # file, first line, name: the key of pstats
Stack = tuple[Function, ...]  # the outermost call first


class DebugRoutes:
    """The routes below /debug. At most one profile is made at a time."""

    # The GETs; a profile takes time from all clients, so a guard may want to know them.
    PATHS = (
        "/debug/pprof/",
        *(f"/debug/pprof/{name}" for name in ("cmdline", "profile", "heap", "goroutine")),
        *(f"/debug/pprof/{name}" for name in ("block", "threadcreate", "symbol")),
    )

    def __init__(self, program: str) -> None:
        """Args: program: the name of the files to download."""
        self._program = program
        self._is_profiling = False
        self._stalls: StallCounts | None = None

    def add_to(self, router: Router) -> None:
        """Add the routes to a router."""
        add = partial(router.add, style=Style.PLAIN)
        add("GET", "/debug/pprof/", lambda _: Response.text(_INDEX))
        add("GET", "/debug/pprof/cmdline", lambda _: Response.text(describe_command_line()))
        add("GET", "/debug/pprof/profile", self._profile)
        add("GET", "/debug/pprof/heap", _show_heap)
        add("GET", "/debug/pprof/goroutine", lambda _: _show(describe_stacks()))
        add("GET", "/debug/pprof/block", self._show_stalls)
        add("GET", "/debug/pprof/threadcreate", lambda _: Response.text(describe_threads()))
        # Go's tools ask here whether addresses need names; our stacks have them already.
        for method in ("GET", "POST"):
            add(method, "/debug/pprof/symbol", lambda _: Response.text("num_symbols: 0\n"))
        add("PUT", "/debug/setblockrate", self._set_block_rate)
        add("POST", "/debug/freememory", _free_memory)

    async def _profile(self, request: Request) -> Response:
        seconds = request.find("seconds")
        duration_s = DEFAULT_PROFILE_S if seconds is None else parse_count(seconds, MAX_PROFILE_S)
        if duration_s is None:
            raise HttpError(400, f"seconds must be 1 to {MAX_PROFILE_S}")
        if self._is_profiling:
            raise HttpError(409, "a profile is being made")
        self._is_profiling = True
        profiler = Profiler()
        try:
            await asyncio.sleep(duration_s)
        finally:
            self._is_profiling = False
            profiler.close()
        name, body = f"{self._program}.pstats", profiler.pstats()
        if request.find("format") == "collapsed":
            name, body = f"{self._program}.collapsed", profiler.collapsed()
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(body=body, content_type="application/octet-stream", headers=headers)

    async def _show_stalls(self, _request: Request) -> Response:
        if self._stalls is None:
            return Response.text("off; PUT /debug/setblockrate?rate=<nanoseconds> turns it on\n")
        return await _show(self._stalls.describe())

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
            threshold_s = min(rate_ns, MAX_STALL_NS) / 1e9
            self._stalls = StallCounts(asyncio.get_running_loop(), threshold_s)
        return EMPTY


class Profiler:
    """Count the stacks of all threads, a hundred times a second, until it is closed."""

    def __init__(self, interval_s: float = PROFILE_INTERVAL_S) -> None:
        self.stacks: Counter[Stack] = Counter()
        self._interval_s = interval_s
        self._functions: dict[CodeType, Function] = {}
        self._observer = Observer("profiler", interval_s, self._sample)

    def close(self) -> None:
        """Stop sampling; the counts stay."""
        self._observer.close()

    def collapsed(self) -> bytes:
        """Return a line per stack, `outer;inner count`, as flame graph tools read it."""
        lines = [
            f"{';'.join(f'{name} ({path}:{line})' for path, line, name in stack)} {count}\n"
            for stack, count in sorted(self.stacks.items())
        ]
        return "".join(lines).encode("utf-8", "replace")

    def pstats(self) -> bytes:
        """Return the file format of pstats, with samples in place of calls.

        A dict from function to (samples, samples, own time, time with callees, callers), and the
        callers are a dict of the same tuples.
        """
        own: Counter[Function] = Counter()
        total: Counter[Function] = Counter()
        callers: defaultdict[Function, Counter[Function]] = defaultdict(Counter)
        for stack, count in self.stacks.items():
            own[stack[-1]] += count
            for function in set(stack):
                total[function] += count
            for caller, function in set(pairwise(stack)):
                callers[function][caller] += count
        table = {
            function: (
                *self._row(count, own[function]),
                {caller: self._row(seen, 0) for caller, seen in callers[function].items()},
            )
            for function, count in total.items()
        }
        return marshal.dumps(table)

    def _row(self, samples: int, own: int) -> tuple[int, int, float, float]:
        return samples, samples, own * self._interval_s, samples * self._interval_s

    def _sample(self) -> None:
        me = threading.get_ident()
        for thread, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way
            if thread != me:
                self.stacks[self._read(frame)] += 1

    def _read(self, frame: FrameType | None) -> Stack:
        stack: list[Function] = []
        while frame is not None and len(stack) < MAX_STACK_DEPTH:
            code = frame.f_code
            function = self._functions.get(code)
            if function is None:
                function = (code.co_filename, code.co_firstlineno, code.co_qualname)
                self._functions[code] = function
            stack.append(function)
            frame = frame.f_back
        return tuple(reversed(stack))


class StallCounts:
    """Count the stacks in which the event loop was held up for longer than a threshold."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threshold_s: float) -> None:
        """Watch the loop of this thread, from now on until `close`."""
        self._threshold_s = max(threshold_s, MIN_STALL_S)
        self._counts: Counter[tuple[Call, ...]] = Counter()
        self._watch = LoopWatch(
            loop, name="stall-watch", stall_lag_s=self._threshold_s, on_stall=self._note
        )

    def close(self) -> None:
        """Watch no longer."""
        self._watch.close()

    def describe(self) -> Iterator[str]:
        """Give the stacks, the most frequent first."""
        yield f"stalls of the event loop of {self._threshold_s * 1e3:g}ms or more\n"
        for stack, count in self._counts.most_common():
            calls = [(file, line, name, None) for file, line, name in reversed(stack)]
            yield f"\n{count} times\n"
            yield from traceback.StackSummary.from_list(calls).format()

    def _note(self, stall: Stall) -> None:
        if stall.stack in self._counts or len(self._counts) < MAX_STALL_STACKS:
            self._counts[stall.stack] += 1


async def _show(parts: Iterable[str]) -> Response:
    return Response(body=await join_slices(parts))


async def _show_heap(_request: Request) -> Response:
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
        f"{'count':>10} {'bytes':>12}  type (without the objects it refers to)\n",
    ]
    lines += [
        f"{counts[name]:>10} {size:>12}  {name}\n"
        for name, size in sizes.most_common(HEAP_TYPES_SHOWN)
    ]
    return Response.text("".join(lines))


async def _free_memory(_request: Request) -> Response:
    gc.collect()
    trim = find_malloc_trim()
    if trim is not None:
        await asyncio.to_thread(trim, 0)
    return EMPTY


def find_malloc_trim() -> Callable[[int], int] | None:
    """Find glibc's function that gives free memory back to the system."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


def describe_stacks() -> Iterator[str]:
    """Give the stacks of all tasks of this loop, one at a time, and of all threads."""
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out = io.StringIO()
        task.print_stack(file=out)
        yield f"task {task.get_name()}\n{out.getvalue()}\n"
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way
        stack = "".join(traceback.format_stack(frame))
        yield f"thread {names.get(ident, '?')} {ident}\n{stack}\n"


def describe_command_line() -> str:
    """Return the arguments, without the passwords and query strings that they may hold."""
    return "\0".join(map(redact_argument, sys.orig_argv))


def describe_threads() -> str:
    """Return a line per thread."""
    return "".join(
        f"{thread.name} id: {thread.native_id} daemon: {thread.daemon}\n"
        for thread in threading.enumerate()
    )
