"""The files that the profiler writes, the code that it sees, and the stalls of the loop."""

import asyncio
import ctypes
import gc
import marshal
import pstats
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nsqd.http import debug
from nsqd.http.debug import (
    MAX_STACK_DEPTH,
    PROFILE_INTERVAL_S,
    DebugRoutes,
    Profiler,
    Stack,
    StallCounts,
    find_malloc_trim,
)
from nsqd.http.routes import Response
from nsqd.runtime import loop_watch
from nsqd.runtime.loop_watch import BEAT_S
from tests.support.api_rig import ApiRig

MAIN = ("main.py", 1, "main")
WORK = ("work.py", 10, "Worker.work")
REST = ("rest.py", 20, "rest")


def make_profile(stacks: dict[Stack, int] | None = None) -> Profiler:
    """Make a profile of these stacks alone."""
    profiler = Profiler()
    profiler.close()
    profiler.stacks = Counter(stacks or {(MAIN, WORK): 3, (MAIN, WORK, REST): 1, (MAIN,): 1})
    return profiler


def test_own_and_total_times() -> None:
    table = marshal.loads(make_profile().pstats())

    assert table[MAIN] == (5, 5, 0.01, 0.05, {})
    assert table[WORK] == (4, 4, 0.03, 0.04, {MAIN: (4, 4, 0.0, 0.04)})
    assert table[REST] == (1, 1, 0.01, 0.01, {WORK: (1, 1, 0.0, 0.01)})


def test_pstats_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.pstats"
    path.write_bytes(make_profile().pstats())

    profile = pstats.Stats(str(path)).get_stats_profile()

    assert profile.total_tt == 0.05
    assert profile.func_profiles["Worker.work"].cumtime == 0.04


def test_recursion_counts_once() -> None:
    table = marshal.loads(make_profile({(MAIN, MAIN, MAIN): 2}).pstats())

    time_s = 2 * PROFILE_INTERVAL_S
    assert table[MAIN] == (2, 2, time_s, time_s, {MAIN: (2, 2, 0.0, time_s)})


def test_collapsed_stacks() -> None:
    assert make_profile().collapsed().decode().splitlines() == [
        "main (main.py:1) 1",
        "main (main.py:1);Worker.work (work.py:10) 3",
        "main (main.py:1);Worker.work (work.py:10);rest (rest.py:20) 1",
    ]


def test_it_sees_other_threads() -> None:
    is_over = threading.Event()
    is_in = threading.Event()

    def wait_in_here() -> None:
        is_in.set()
        is_over.wait(10)

    thread = threading.Thread(target=wait_in_here)
    thread.start()
    is_in.wait(10)
    profiler = Profiler(interval_s=0.0001)
    while not profiler.stacks:
        is_in.wait(0)
    profiler.close()
    is_over.set()
    thread.join()

    assert b"wait_in_here" in profiler.collapsed()
    assert b"_sample" not in profiler.collapsed()


def test_the_outermost_calls_of_a_deep_stack_are_left_out() -> None:
    is_over = threading.Event()
    is_in = threading.Event()

    def dig(depth: int) -> None:
        if depth:
            dig(depth - 1)
        else:
            is_in.set()
            is_over.wait(10)

    thread = threading.Thread(target=dig, args=(200,))
    thread.start()
    is_in.wait(10)
    profiler = Profiler(interval_s=0.0001)
    while not profiler.stacks:
        is_in.wait(0)
    profiler.close()
    is_over.set()
    thread.join()

    deep = [stack for stack in profiler.stacks if any("dig" in call[2] for call in stack)]
    assert deep
    assert {len(stack) for stack in deep} == {MAX_STACK_DEPTH}
    assert all(stack[0][2].endswith("dig") for stack in deep)


class StallRig:
    """A loop and an observer that a test moves by hand, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.beat: Callable[[], None]
        self.beat_delay_s = 0.0
        self.look: Callable[[], None]
        self.look_interval_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, thread_time=lambda: 0.0)
        monkeypatch.setattr(loop_watch, "time", clock)
        monkeypatch.setattr(loop_watch, "Observer", self._observe)

    def watch(self, threshold_s: float) -> StallCounts:
        return StallCounts(cast("asyncio.AbstractEventLoop", self), threshold_s)

    def call_later(self, delay_s: float, beat: Callable[[], None]) -> object:
        self.beat_delay_s, self.beat = delay_s, beat
        return None

    def _observe(self, _name: str, interval_s: float, look: Callable[[], None]) -> object:
        self.look_interval_s, self.look = interval_s, look
        return None

    def hold_up(self, *seconds: float) -> None:
        """Let time pass, with a look after each part of it; then comes the beat."""
        for part in seconds:
            self.now += part
            self.look()
        self.beat()


def describe(stalls: StallCounts) -> str:
    return "".join(stalls.describe())


def test_a_beat_that_is_late_by_the_threshold_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StallRig(monkeypatch)
    stalls = rig.watch(0.5)
    assert (rig.beat_delay_s, rig.look_interval_s) == (BEAT_S, 0.5)

    rig.hold_up(BEAT_S + 0.4999)
    assert describe(stalls) == "stalls of the event loop of 500ms or more\n"

    rig.hold_up(BEAT_S + 0.5, 0.25, 5)  # one stall, however often it is looked at
    assert "\n1 times\n" in describe(stalls)
    assert "hold_up" in describe(stalls)

    assert rig.beat_delay_s == BEAT_S
    rig.hold_up(BEAT_S)
    assert "\n1 times\n" in describe(stalls)


def test_the_most_frequent_stall_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StallRig(monkeypatch)
    stalls = rig.watch(0.5)

    rig.hold_up(1)
    for _ in range(2):
        rig.hold_up(1)

    assert "\n2 times\n" in describe(stalls).partition("\n1 times\n")[0]


def test_only_so_many_different_stalls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "MAX_STALL_STACKS", 1)
    rig = StallRig(monkeypatch)
    stalls = rig.watch(0.5)

    for _ in range(3):  # the first place
        rig.hold_up(1)
    rig.hold_up(1)  # a second one

    assert describe(stalls).count(" times\n") == 1
    assert "\n3 times\n" in describe(stalls)


def test_stalls_below_a_millisecond_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StallRig(monkeypatch)

    assert "of 1ms or more" in describe(rig.watch(0.000_000_001))
    assert rig.look_interval_s == rig.beat_delay_s == 0.001


@pytest.mark.parametrize("error", [OSError("no such library"), AttributeError("malloc_trim")])
def test_a_libc_without_malloc_trim_has_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_name: None) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", refuse)

    assert find_malloc_trim() is None


@pytest.mark.parametrize("has_trim", [False, True])
async def test_free_memory_collects_and_trims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_trim: bool
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(debug, "find_malloc_trim", lambda: calls.append if has_trim else None)
    rig = ApiRig(tmp_path)
    DebugRoutes("nsqd").add_to(rig.router)
    request = rig.parse("POST", "/debug/freememory")

    reply = await cast(Awaitable[Response], request.route.handler(request))

    assert (reply.status, reply.body) == (200, b"")
    assert calls == (["collect", 0] if has_trim else ["collect"])


async def test_a_rate_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches: list[str] = []

    class Watch:
        def __init__(self, _loop: object, threshold_s: float) -> None:
            self.name = f"{threshold_s:g}"
            watches.append(f"open {self.name}")

        def close(self) -> None:
            watches.append(f"close {self.name}")

        def describe(self) -> list[str]:
            return [self.name]

    monkeypatch.setattr(debug, "StallCounts", Watch)
    rig = ApiRig(tmp_path)
    DebugRoutes("nsqd").add_to(rig.router)

    async def put(rate: str) -> tuple[int, str]:
        return await rig.call("PUT", f"/debug/setblockrate?rate={rate}")

    off = (200, "off; PUT /debug/setblockrate?rate=<nanoseconds> turns it on\n")
    assert await rig.call("GET", "/debug/pprof/block") == off
    assert await put("5000000") == (200, "")
    assert await rig.call("GET", "/debug/pprof/block") == (200, "0.005")
    assert await put("x") == (400, "invalid block rate : x")
    assert await put("1") == (200, "")
    assert await put("9" * 15) == (200, "")
    assert await put("0") == (200, "")
    assert await rig.call("GET", "/debug/pprof/block") == off
    assert await put("-1") == (200, "")

    assert watches == [
        *("open 0.005", "close 0.005", "open 1e-09", "close 1e-09", "open 3600", "close 3600")
    ]
