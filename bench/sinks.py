"""Commands that hand messages on, in turns with Go's: `to-file`, with gzip, and `to-nsq`.

They do not end by themselves: the time is from their start until the channel is empty. Python's
start is in it, so that ours get more messages; memory is the most that was resident.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.daemon_process import Daemon

CHANNEL = "c"
OURS_TIMES = 10
_PATIENCE_S = 300.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SinkRate:
    """One command's run."""

    name: str
    rate: float  # messages per second
    cpu_s: float
    rss_bytes: int


def measure_sinks(
    daemon: Daemon,
    count: int,
    fill: Callable[[str, int], None],
    find_go: Callable[[str], str],
) -> list[SinkRate]:
    """Measure each command. Args: fill: publishes so many messages; find_go: finds a tool of Go."""
    address = f"{daemon.tcp[0]}:{daemon.tcp[1]}"
    nsq = str(Path(sys.executable).parent / "nsq")
    ours = ("--channel", CHANNEL, "-a", address, "--no-context", "-q")
    theirs = ("--topic={}", f"--channel={CHANNEL}", f"--nsqd-tcp-address={address}")
    # With its own interval, the last messages would wait for half a minute.
    files = ("--output-dir=DIR", "--sync-interval=1s")
    to = f"--destination-nsqd-tcp-address={address}"
    commands: list[tuple[str, list[str]]] = [
        ("nsq to-file", [nsq, "to-file", "{}", "--output-dir", "DIR", *ours]),
        ("nsq_to_file (Go)", [find_go("nsq_to_file"), *theirs, *files]),
        ("nsq to-file --gzip", [nsq, "to-file", "{}", "--output-dir", "DIR", "--gzip", *ours]),
        (
            "nsq_to_file --gzip (Go)",
            [find_go("nsq_to_file"), *theirs, *files, "--gzip"],
        ),
        (
            "nsq to-nsq",
            [nsq, "to-nsq", "{}", "--destination-nsqd", address, "--destination-topic", "x", *ours],
        ),
        (
            "nsq_to_nsq (Go)",
            [find_go("nsq_to_nsq"), *theirs, to, "--destination-topic=x", "--status-every=0"],
        ),
    ]  # fmt: skip
    found = []
    for number, (name, command) in enumerate(commands):
        if not command[0]:
            continue
        topic = f"sink{number}"
        many = count * OURS_TIMES if command[0] == nsq else count
        daemon.request("POST", "/topic/create", topic=topic)
        daemon.request("POST", "/channel/create", topic=topic, channel=CHANNEL)
        fill(topic, many)
        with tempfile.TemporaryDirectory() as directory:
            argv = [part.replace("{}", topic).replace("DIR", directory) for part in command]
            found.append(_measure(daemon, name, argv, topic, many))
        for used in (topic, "x"):
            _delete(daemon, used)
    return found


def _measure(daemon: Daemon, name: str, argv: list[str], topic: str, count: int) -> SinkRate:
    start = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while _left(daemon, topic):
                if process.poll() is not None or time.monotonic() - start > _PATIENCE_S:
                    raise RuntimeError(f"{name} has not done it: {process.poll()}")
                time.sleep(_POLL_S)
            lasted_s = time.monotonic() - start
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").split()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    cpu_s = (int(fields[13]) + int(fields[14])) / 100
    return SinkRate(name, count / lasted_s, cpu_s, int(peak[1]) * 1024)


def _left(daemon: Daemon, topic: str) -> int:
    stats = json.loads(daemon.request("GET", "/stats", format="json", topic=topic))
    [entry] = stats["topics"]
    [channel] = entry["channels"]
    return int(entry["depth"] + channel["depth"] + channel["in_flight_count"])


def _delete(daemon: Daemon, topic: str) -> None:
    known = json.loads(daemon.request("GET", "/stats", format="json", topic=topic))["topics"]
    if known:
        daemon.request("POST", "/topic/delete", topic=topic)
