"""docs/operations.md is a transcript: its commands are run, and give what it says."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.running_daemon import StartNsqd
from tests.support.waiting import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
ANYTHING = "…"


def read_transcript(text: str) -> list[tuple[str, str]]:
    """Return the commands of all console blocks in order, each with what it prints."""
    steps: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            steps.append((command, output))
    return steps


def as_pattern(expected: str) -> str:
    lines = [
        ".*".join(map(re.escape, line.rstrip().split(ANYTHING))) for line in expected.splitlines()
    ]
    return "\n".join(lines).rstrip()


async def run(command: str, directory: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command),
        cwd=directory,
        env=os.environ | {"NO_PROXY": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return "\n".join(line.rstrip() for line in output.decode().splitlines()).rstrip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands need curl")
async def test_the_transcript_is_true(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    steps = read_transcript(PAGE.read_text())
    assert len(steps) > 20
    nsqd = await start_nsqd()
    port = str(nsqd.daemon.http_port)

    for command, expected in steps:
        here = command.replace("4151", port).replace("python3 ", f"{sys.executable} ")
        pattern = as_pattern(expected).replace("4151", port)

        output = await run(here, tmp_path)

        assert re.fullmatch(pattern, output, re.DOTALL), (command, expected, output)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands need curl")
async def test_the_hook_for_kubernetes_waits_for_the_drain(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    [command] = re.findall(r"^ +- (curl .*)$", PAGE.read_text(), re.MULTILINE)
    nsqd = await start_nsqd()
    consumer = await nsqd.consumer("t", rdy=1)
    await nsqd.publish("t", b"x")
    message = await consumer.read_message()

    hook = asyncio.create_task(run(command.replace("4151", str(nsqd.daemon.http_port)), tmp_path))
    await asyncio.wait((hook,), timeout=0.5)
    assert not hook.done(), "SIGTERM would come too soon"
    consumer.fin(message)
    assert await asyncio.wait_for(nsqd.daemon.ending.wait(), PATIENCE_S) == 0
    await nsqd.stop()

    await hook


@pytest.mark.parametrize(
    "path",
    ["/pub", "/mpub", "/stats", "/metrics", "/topic/peek", "/channel/peek", "/drain", "/ready"],
)
def test_what_operators_need_is_on_the_page(path: str) -> None:
    assert path in PAGE.read_text()
