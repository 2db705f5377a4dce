"""The files that the profiler writes; and that it sees the code that runs."""

import marshal
import pstats
import threading
from collections import Counter
from pathlib import Path

from nsqd.http.debug import PROFILE_INTERVAL_S, Profiler, Stack

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
