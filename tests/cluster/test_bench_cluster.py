"""The cluster that `make cluster` shows: it runs, heals, and leaves nothing behind."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 30.0


def test_it_heals_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.cluster", "--chaos=0.5", f"--seconds={TIMEOUT_S}"],
        cwd=REPOSITORY,
        env={"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        lines = read_until_healed(demo)
        demo.send_signal(signal.SIGINT)
        rest, errors = demo.communicate(timeout=TIMEOUT_S)

    assert (demo.returncode, errors) == (0, "")
    assert rest.splitlines()[-1] == "stopping"
    assert list(tmp_path.iterdir()) == []
    ports = re.findall(r"TCP 127\.0\.0\.1:(\d+)", "".join(lines))
    assert len(ports) == 5
    assert not any(f":{port}" in command for port in ports for command in running_commands())


def read_until_healed(demo: subprocess.Popen[str]) -> list[str]:
    """Read until something was killed, all runs again, and messages have come through."""
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        counts = re.search(r"nsqd 3/3 .* consumed (\d+)", line)
        if counts and int(counts[1]) > 50 and any("restarted" in each for each in lines):
            return lines
    raise AssertionError(lines)


def running_commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield path.read_text()
