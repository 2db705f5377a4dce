"""A sampling profiler: looks at the stacks of all threads a hundred times a second.

It costs the daemon about a per cent while it runs, where the deterministic profiler of the standard
library would halve its speed and so measure something else. What it found comes as a file for
`python -m pstats` (and whatever reads its format), or as collapsed stacks for flame graphs.
"""

import marshal
import sys
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from types import CodeType, FrameType

INTERVAL_S = 0.01
MAX_DEPTH = 128

Function = tuple[str, int, str]  # file, first line, name: the key of pstats
Stack = tuple[Function, ...]  # the outermost call first


class Profiler:
    """Samples until it is stopped; made for one use."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._stacks: Counter[Stack] = Counter()
        self._functions: dict[CodeType, Function] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="profiler", daemon=True)

    @property
    def sample_count(self) -> int:
        """How often it has looked at a thread."""
        return self._stacks.total()

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> "Profile":
        """End and return what was seen."""
        self._is_over.set()
        self._thread.join()
        return Profile(self._stacks, self._interval_s)

    def _sample_on(self) -> None:
        due = time.monotonic()
        while not self._is_over.wait(max(due - time.monotonic(), 0)):
            self._sample()
            due = max(due + self._interval_s, time.monotonic())

    def _sample(self) -> None:
        me = threading.get_ident()
        for thread, frame in sys._current_frames().items():  # noqa: SLF001 - there is no other way
            if thread != me:
                self._stacks[self._read(frame)] += 1

    def _read(self, frame: FrameType | None) -> Stack:
        stack: list[Function] = []
        while frame is not None and len(stack) < MAX_DEPTH:
            code = frame.f_code
            function = self._functions.get(code)
            if function is None:
                function = (code.co_filename, code.co_firstlineno, code.co_qualname)
                self._functions[code] = function
            stack.append(function)
            frame = frame.f_back
        return tuple(reversed(stack))


class Profile:
    """How often each stack was seen."""

    def __init__(self, stacks: Counter[Stack], interval_s: float) -> None:
        self._stacks = stacks
        self._interval_s = interval_s

    def collapsed(self) -> bytes:
        """Return a line per stack, `outer;inner count`, as flame graph tools read it."""
        lines = [
            f"{';'.join(f'{name} ({path}:{line})' for path, line, name in stack)} {count}\n"
            for stack, count in sorted(self._stacks.items())
        ]
        return "".join(lines).encode("utf-8", "replace")

    def pstats(self) -> bytes:
        """Return the file format of pstats; what it calls calls are samples here.

        A dict from function to (samples, samples, own time, time with callees, callers), and the
        callers are a dict of the same tuples.
        """
        own: Counter[Function] = Counter()
        total: Counter[Function] = Counter()
        callers: defaultdict[Function, Counter[Function]] = defaultdict(Counter)
        for stack, count in self._stacks.items():
            if not stack:
                continue
            own[stack[-1]] += count
            for function in set(stack):
                total[function] += count
            for caller, function in set(pairwise(stack)):
                callers[function][caller] += count
        table = {
            function: (
                *self._row(count, own[function], count),
                {caller: self._row(seen, 0, seen) for caller, seen in callers[function].items()},
            )
            for function, count in total.items()
        }
        return marshal.dumps(table)

    def _row(self, samples: int, own: int, total: int) -> tuple[int, int, float, float]:
        return samples, samples, own * self._interval_s, total * self._interval_s
