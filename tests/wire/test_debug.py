"""/debug: what a Python operator can use."""

import asyncio
import pstats
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.http_client import HttpClient
from tests.support.running_daemon import RunningDaemon
from tests.support.waiting import until


@pytest.fixture
async def http(nsqd: RunningDaemon) -> AsyncIterator[HttpClient]:
    async with await connect(nsqd) as client:
        yield client


def is_profiling() -> bool:
    return "profiler" in [thread.name for thread in threading.enumerate()]


async def connect(nsqd: RunningDaemon) -> HttpClient:
    return await HttpClient.connect(("127.0.0.1", nsqd.daemon.http_port))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/debug/pprof/", "profile"),
        ("/debug/pprof/cmdline", "python"),
        ("/debug/pprof/heap", "builtins.dict"),
        ("/debug/pprof/goroutine", "thread MainThread"),
        ("/debug/pprof/goroutine", "task registration"),
        ("/debug/pprof/threadcreate", "MainThread"),
        ("/debug/pprof/block", "setblockrate"),
        ("/debug/pprof/symbol", "num_symbols: 0"),
    ],
)
async def test_pages(http: HttpClient, path: str, text: str) -> None:
    reply = await http.get(path)

    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert text in reply.text


async def test_a_profile_is_a_file_for_pstats(http: HttpClient, tmp_path: Path) -> None:
    reply = await http.get("/debug/pprof/profile?seconds=1")

    assert reply.status == 200
    assert reply.headers["content-disposition"] == 'attachment; filename="nsqd.pstats"'
    path = tmp_path / "nsqd.pstats"
    path.write_bytes(reply.body)
    profile = pstats.Stats(str(path)).get_stats_profile()
    assert profile.total_tt > 0.2


async def test_collapsed_stacks_and_one_profile_at_a_time(
    nsqd: RunningDaemon, http: HttpClient
) -> None:
    async with await connect(nsqd) as other:
        first = asyncio.create_task(http.get("/debug/pprof/profile?seconds=1&format=collapsed"))
        await until(is_profiling)

        second = await other.get("/debug/pprof/profile?seconds=1")

        assert (second.status, second.text) == (409, "a profile is being made")
        reply = await first
    assert reply.status == 200
    assert all(line.rpartition(" ")[2].isdigit() for line in reply.text.splitlines())


async def test_a_profile_does_not_outlive_the_daemon(nsqd: RunningDaemon) -> None:
    async with await connect(nsqd) as http:
        http.send(b"GET /debug/pprof/profile?seconds=300 HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(is_profiling)

        await nsqd.shut_down()

    assert not is_profiling()


@pytest.mark.parametrize("seconds", ["0", "x", "-1", "301", "", "9999999999", "0000000010000000"])
async def test_bad_durations(http: HttpClient, seconds: str) -> None:
    assert (await http.get(f"/debug/pprof/profile?seconds={seconds}")).status == 400


async def test_stalls_of_the_loop_are_found(http: HttpClient) -> None:
    assert (await http.request("PUT", "/debug/setblockrate?rate=5000000")).status == 200
    await asyncio.sleep(0.05)

    hold_up_the_loop()
    await asyncio.sleep(0.05)

    assert "hold_up_the_loop" in (await http.get("/debug/pprof/block")).text
    assert (await http.request("PUT", "/debug/setblockrate?rate=0")).status == 200
    assert "stall-watch" not in (await http.get("/debug/pprof/threadcreate")).text
    assert (await http.get("/debug/pprof/block")).text.startswith("off")


@pytest.mark.parametrize("digit_count", [30, 400])
async def test_an_endless_rate_is_an_hour(http: HttpClient, digit_count: int) -> None:
    reply = await http.request("PUT", f"/debug/setblockrate?rate={'9' * digit_count}")

    assert reply.status == 200
    assert "3.6e+06ms" in (await http.get("/debug/pprof/block")).text
    assert "stall-watch" in (await http.get("/debug/pprof/threadcreate")).text
    assert (await http.request("PUT", "/debug/setblockrate?rate=0")).status == 200


def hold_up_the_loop() -> None:
    time.sleep(0.1)


async def test_a_bad_rate_is_refused(http: HttpClient) -> None:
    reply = await http.request("PUT", "/debug/setblockrate?rate=fast")

    assert (reply.status, reply.text) == (400, "invalid block rate : fast")


async def test_free_memory(http: HttpClient) -> None:
    reply = await http.post("/debug/freememory")

    assert (reply.status, reply.body) == (200, b"")
