"""A line that says how far a command is."""

import asyncio
import os
import signal
import sys

import pytest

from nsqd.cli import progress
from nsqd.cli.progress import ProgressLine


async def test_a_signal_prints_it_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    async with ProgressLine(lambda: "5 of\x1b 10"):
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    assert capsys.readouterr().err == "5 of\\x1b 10\n"


async def test_a_terminal_sees_it_change_and_go(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    counts = iter(range(100))

    async with ProgressLine(lambda: f"{min(next(counts), 2)}"):
        for _ in range(10):
            await asyncio.sleep(0)
    async with ProgressLine(lambda: "never", is_quiet=True):
        await asyncio.sleep(0.01)

    assert capsys.readouterr().err == "".join(f"\r\x1b[K{each}" for each in ("0", "1", "2", ""))
