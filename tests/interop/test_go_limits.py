"""Limits of topics in nsqd.dat: Go's nsqd starts with them, and delivers what they let through."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.daemon_process import DaemonProcess

FindGo = Callable[[str], str]


def test_go_ignores_what_it_does_not_know(tmp_path: Path, find_go: FindGo) -> None:
    go = find_go("nsqd")
    flags = ("--max-depth=3", "--max-depth-policy=drop-oldest")
    with DaemonProcess(tmp_path, *flags) as process:
        process.request("POST", "/topic/create?topic=t")
        process.request("POST", "/channel/create?topic=t&channel=c")
        process.request("POST", "/topic/limits?topic=t&max_depth=2&msg_ttl=1h&max_attempts=5")
        for number in range(4):
            process.publish("t", b"%d" % number)
        process.wait_for_channel("t", "c", depth=2)
        process.stop()
    [topic] = json.loads((process.data_path / "nsqd.dat").read_bytes())["topics"]
    assert topic["limits"]["max_depth"] == 2

    with DaemonProcess(tmp_path / "go", command=(go,), data=process.data_path) as process:
        process.wait_for_channel("t", "c", depth=2)
