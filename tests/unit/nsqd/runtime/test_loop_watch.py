"""The lag of the loop: measured by beats, the worst remembered, stalls logged with their stacks."""

import asyncio
import logging
import time

import pytest

from nsqd.runtime import loop_watch
from nsqd.runtime.loop_watch import (
    BEAT_S,
    LOG_INTERVAL_S,
    STALL_LAG_S,
    LoopWatch,
    Stall,
    StallLog,
    WorstLag,
    describe_calls,
)
from tests.support.fake_loop import FakeLoop
from tests.support.waiting import until


class HeldUpLoop(FakeLoop):
    """A loop whose clock is also the one that the watch reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def hold_up(self, seconds: float) -> None:
        """Let time pass in one turn: timers that are due in it are called at its end."""
        self.now += seconds
        self.advance()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> HeldUpLoop:
    # The thread that looks at the loop is tested with a real one.
    monkeypatch.setattr(loop_watch, "Observer", lambda *_: None)
    return HeldUpLoop(monkeypatch)


def test_each_beat_measures_a_lag(loop: HeldUpLoop) -> None:
    lags: list[float] = []
    LoopWatch(loop.as_loop(), on_lag=lags.append)

    loop.advance(BEAT_S)
    loop.hold_up(BEAT_S + 0.007)
    loop.advance(BEAT_S)

    assert lags == pytest.approx([0.0, 0.007, 0.0], abs=1e-9)


def test_the_worst_of_the_last_minute(loop: HeldUpLoop) -> None:
    watch = LoopWatch(loop.as_loop())

    loop.hold_up(BEAT_S + 0.2)
    loop.advance(40)
    loop.hold_up(BEAT_S + 0.1)
    assert watch.worst_lag_s == pytest.approx(0.2)
    loop.advance(30)
    assert 0.1 <= watch.worst_lag_s <= 0.1 + BEAT_S
    loop.advance(61)

    assert watch.worst_lag_s == pytest.approx(0.0, abs=1e-9)


def test_a_worst_lag_is_forgotten_even_if_no_beat_comes() -> None:
    worst = WorstLag()
    worst.note(0.5, 1000.0)

    assert worst.read(1049.0) == 0.5
    assert worst.read(1061.0) == 0.0
    assert worst.read(2_000_000.0) == 0.0


def test_only_a_long_turn_is_a_stall(loop: HeldUpLoop) -> None:
    stalls: list[Stall] = []
    LoopWatch(loop.as_loop(), on_stall=stalls.append)

    loop.hold_up(BEAT_S + STALL_LAG_S - 0.001)
    assert not stalls
    loop.hold_up(0.05 + BEAT_S)  # wherever in it the beat was due

    [stall] = stalls
    assert stall.lag_s == pytest.approx(0.05)


def make_stall(lag_ms: int) -> Stall:
    return Stall(lag_ms / 1e3, 0.002, (("/x/nsqd/inner.py", 7, "Inner.work"), ("/x/o.py", 1, "o")))


def test_the_log_has_one_line_a_minute_about_the_worst(
    loop: HeldUpLoop, caplog: pytest.LogCaptureFixture
) -> None:
    log = StallLog(loop.as_loop())

    with caplog.at_level(logging.WARNING):
        for lag_ms in (60, 70, 900, 80):
            log.note(make_stall(lag_ms))
            loop.advance(1)
        assert len(caplog.messages) == 1
        loop.advance(LOG_INTERVAL_S)
        assert len(caplog.messages) == 2
        loop.advance(3 * LOG_INTERVAL_S)
        log.note(make_stall(65))

    calls = "in inner.py:7 Inner.work < o.py:1 o"
    assert caplog.messages == [
        f"LOOP: held up lag=60ms cpu=2ms count=1 {calls}",
        f"LOOP: held up lag=900ms cpu=2ms count=3 {calls}",
        f"LOOP: held up lag=65ms cpu=2ms count=1 {calls}",
    ]


def test_a_closed_log_leaves_no_timer(loop: HeldUpLoop) -> None:
    log = StallLog(loop.as_loop())
    log.note(make_stall(60))
    log.close()

    assert loop.timer_count == 0


def test_a_stall_that_was_not_seen_has_no_calls() -> None:
    assert describe_calls(()) == "an unknown call"


async def test_the_call_that_holds_the_loop_up_is_seen() -> None:
    """On a real loop with a real thread: the sleep is far longer than any interval."""
    stalls: list[Stall] = []
    watch = LoopWatch(asyncio.get_running_loop(), stall_lag_s=0.02, on_stall=stalls.append)
    await asyncio.sleep(0.05)
    hold_up_the_loop()
    await until(lambda: any("hold_up" in describe_calls(stall.stack) for stall in stalls))
    watch.close()

    assert watch.worst_lag_s > 0.1


def hold_up_the_loop() -> None:
    time.sleep(0.5)
