"""Every test runs on uvloop, as nsqd does, with nsqd in process on port 0.

Those marked `both_loops` run on asyncio's own loop as well: what they see depends on the transports
of a loop (closing, flow control, TLS, unix sockets), and nsqd falls back to it without uvloop.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.lookupd_in_process import LookupdInProcess, LoopFactory
from tests.support.running_daemon import RunningDaemon, StartNsqd
from tests.support.v2_client import V2Client

UVLOOP: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
BOTH_LOOPS = {**UVLOOP, "asyncio": asyncio.SelectorEventLoop}


def loops_of(item: pytest.Item) -> dict[str, LoopFactory]:
    """The loops that a test runs on."""
    return UVLOOP if item.get_closest_marker("both_loops") is None else BOTH_LOOPS


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, LoopFactory]:
    """Run coroutines of tests on these loops."""
    return loops_of(item)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hand the loops to tests that run them in a thread, or by themselves."""
    if "loop_factory" in metafunc.fixturenames:
        loops = loops_of(metafunc.definition)
        metafunc.parametrize("loop_factory", loops.values(), ids=list(loops))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep reports printable: strangers' bytes in the captured log may not be UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture
async def start_nsqd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[StartNsqd]:
    """Start nsqd with options of the test; at the end it is stopped and must be without fault."""
    # Reading the authorities of the system takes longer than all else, and no test needs them.
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    started: list[RunningDaemon] = []

    async def start(*, data_path: Path | None = None, **options: Any) -> RunningDaemon:
        nsqd = RunningDaemon(data_path or tmp_path, **options)
        await nsqd.start()
        started.append(nsqd)
        return nsqd

    yield start
    for nsqd in reversed(started):
        await nsqd.stop()
    faults = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.exc_info and record.name.startswith("nsqd")
    ]
    assert not faults


@pytest.fixture
async def nsqd(start_nsqd: StartNsqd) -> RunningDaemon:
    """nsqd with its defaults."""
    return await start_nsqd()


@pytest.fixture
async def client(nsqd: RunningDaemon) -> V2Client:
    """A connection that has sent the magic."""
    return await nsqd.connect()


@pytest.fixture
def lookupd(loop_factory: LoopFactory) -> Iterator[LookupdInProcess]:
    """nsqlookupd with its defaults."""
    with LookupdInProcess(loop_factory) as lookupd:
        yield lookupd
