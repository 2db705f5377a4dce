"""Memory that was freed is used again, and that of a heap that grows fast is cleared ahead."""

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from nsqd.runtime import memory

# Fills and empties memory four times; prints the page faults of the last three.
REFILL = textwrap.dedent("""
    import resource, sys
    from nsqd.runtime.memory import keep_freed_memory
    def refill():
        bodies = [bytes([number]) * 100_000 for number in range(250)]
        bodies.clear()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if sys.argv[1] == "keep":
        keep_freed_memory()
    first = refill()
    print([refill() for _ in range(3)][-1] - first)
""")
REFILLED_PAGES = 3 * 250 * 100_000 // 4096


def run(program: str, mode: str, environment: dict[str, str] | None = None) -> int:
    variables = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    variables.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, "-c", program, mode],
        env=variables | (environment or {}),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


@needs_glibc
def test_freed_memory_is_used_again_without_the_kernel() -> None:
    assert run(REFILL, "keep") < REFILLED_PAGES // 20


@needs_glibc
@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_TOP_PAD_": "0"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072:glibc.malloc.top_pad=0"},
    ],
    ids=["variables", "tunables"],
)
def test_the_operators_settings_of_malloc_stand(environment: dict[str, str]) -> None:
    assert run(REFILL, "keep", environment) > REFILLED_PAGES // 2


# Grows until the heap has been made larger twice, and looks each time if the mode is "look"; prints
# the page faults of the next 32 MB.
GROW = textwrap.dedent("""
    import resource, sys
    from nsqd.runtime import memory
    memory.keep_freed_memory()
    ahead = memory.MemoryAhead(lambda work: work())
    bodies = []
    end, growths = memory.find_heap_end(), 0
    while growths < 2:
        bodies.append(b"x" * 100_000)
        if memory.find_heap_end() > end:
            end, growths = memory.find_heap_end(), growths + 1
            if sys.argv[1] == "look":
                ahead.look()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(320):
        bodies.append(b"x" * 100_000)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
""")
GROWN_PAGES = 320 * 100_000 // 4096

needs_compiled = pytest.mark.skipif(not memory.has_populate, reason="not compiled")


@needs_glibc
@needs_compiled
def test_a_heap_that_grows_fast_is_cleared_ahead() -> None:
    assert run(GROW, "look") < GROWN_PAGES // 20
    assert run(GROW, "do not look") > GROWN_PAGES // 2


class Heap:
    """The end of a heap, and the starts from which it was cleared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 1000
        self.now = 50.0
        self.starts: list[int] = []
        monkeypatch.setattr(memory, "has_populate", True)
        monkeypatch.setattr(memory, "find_heap_end", lambda: self.end, raising=False)
        monkeypatch.setattr(memory, "populate_heap", self.populate, raising=False)
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def populate(self, start: int, **_: int) -> None:
        self.starts.append(start)
        self.end += 7  # it goes on growing meanwhile


def test_growth_now_and_then_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = Heap(monkeypatch)
    ahead = memory.MemoryAhead(lambda work: work())

    for _ in range(3):
        heap.end += 100
        heap.now += memory.FAST_S
        ahead.look()
        ahead.look()

    assert heap.starts == []


def test_fast_growth_is_cleared_once_and_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = Heap(monkeypatch)
    waiting: list[Callable[[], object]] = []
    ahead = memory.MemoryAhead(waiting.append)

    for _ in range(4):
        heap.end += 100
        heap.now += 0.1
        ahead.look()
    assert len(waiting) == 1
    waiting.pop()()
    ahead.look()
    assert heap.starts == [1100]
    assert not waiting, "what it grew by during the work is cleared"

    heap.end -= 500
    ahead.look()
    heap.end += 100
    ahead.look()
    waiting.pop()()
    assert heap.starts == [1100, 907]


def test_without_the_compiled_functions_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "has_populate", False)
    ahead = memory.MemoryAhead(lambda _work: pytest.fail("a thread was started"))

    ahead.look()
