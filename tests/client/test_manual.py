"""docs/client.md is true: its examples run, in its order, against one nsqd."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.daemon_process import REPOSITORY, DaemonProcess
from tests.support.waiting import wait_until

MANUAL = REPOSITORY / "docs" / "client.md"


def test_the_examples_of_the_manual_run(tmp_path: Path) -> None:
    text = MANUAL.read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    publish, consume, handlers, sync = examples

    with DaemonProcess(tmp_path / "nsqd") as nsqd:

        def start(example: str) -> "subprocess.Popen[str]":
            program = example.replace("127.0.0.1:4150", nsqd.tcp_address)
            return subprocess.Popen(
                [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True
            )

        with start(publish) as process:
            assert process.communicate()[0] == ""
            assert process.returncode == 0
        with start(consume) as process:
            output = process.communicate()[0]
            assert output.splitlines()[:4] == ["1 one", "1 two", "1 three", "1 four"]
        with start(handlers) as process:
            wait_until(lambda: nsqd.find_channel("orders", "audit"))
            nsqd.publish("orders", b"handled")
            assert process.stdout is not None
            assert process.stdout.readline() == "handled\n"
            process.terminate()
        assert process.returncode == 0
        with start(sync) as process:
            assert process.communicate()[0] == ""
            assert process.returncode == 0
