"""docs/cli.md is true: its transcripts run, in its order, against one nsqd."""

import os
import re
import subprocess
from pathlib import Path

from tests.cli.conftest import Shell, command, environment
from tests.support.daemon_process import REPOSITORY, DaemonProcess

MANUAL = REPOSITORY / "docs" / "cli.md"


def steps() -> list[tuple[str, str]]:
    """The commands of the manual, with their output."""
    text = MANUAL.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = []
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            found.append((line, output))
    return found


def test_the_transcripts_of_the_manual_run(
    shell: Shell, our_daemon: DaemonProcess, tmp_path: Path
) -> None:
    (shell.home / "numbers.csv").write_text("1,2,3\n", encoding="ascii")
    (shell.home / "queues").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "nsq"
    python, *rest = command("nsq")
    script.write_text(f"#!/bin/sh\nexec {python} {rest[0]} '{rest[1]}' \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    env = environment(shell.home)
    env |= {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NSQD_TCP_ADDRESS": our_daemon.tcp_address,
        "NSQD_HTTP_ADDRESS": our_daemon.http_address,
    }
    assert len(steps()) > 20

    wrong = []
    for line, wanted in steps():
        done = subprocess.run(
            line,
            shell=True,
            env=env,
            cwd=shell.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=40,
            check=False,
        )
        # A line of its own stands for any number of lines.
        pieces = [".*".join(map(re.escape, piece.split("…"))) for piece in wanted.split("\n…\n")]
        pattern = r"\n(?:.*\n)*".join(pieces)
        pattern = re.sub(r"(?:\\ )+", r" +", pattern)
        if not re.fullmatch(pattern, done.stdout):
            wrong.append((line, done.stdout, wanted))
    assert wrong == []
