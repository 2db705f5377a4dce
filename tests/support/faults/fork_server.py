"""A process that has loaded nsqd and forks a daemon in 20 ms whenever it is asked to.

A start of Python and of all modules takes twenty times as long, and crash tests start thousands.
What is forked is a process of its own like any other: it can be killed, and it never shares
anything with its siblings but the code. Requests and replies are lines of JSON on stdin and stdout;
when stdin ends, everything that still runs is killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from tests.support.daemon_process import ENVIRONMENT, REPOSITORY
from tests.support.faults.runner import Run, run


class ForkServer:
    """The client's end: starts the process and asks it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faults.fork_server"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
        )

    def close(self) -> None:
        """End it and all its children."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def spawn(self, how: Run, log: Path) -> int:
        """Start a daemon and return its process id."""
        pid: int = self._ask({"run": asdict(how), "log": str(log)})
        return pid

    def poll(self, pid: int) -> int | None:
        """The exit code of a daemon, negative for a signal; None while it runs."""
        code: int | None = self._ask({"poll": pid})
        return code

    def _ask(self, request: dict[str, object]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _run_child(request: dict[str, Any]) -> NoReturn:
    code = 99
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = run(Run(**request["run"]))
    except BaseException:  # noqa: BLE001 - the last frame of the process; it goes to the log
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve(requests: IO[str], replies: IO[str]) -> None:
    codes: dict[int, int | None] = {}
    for line in requests:
        request = json.loads(line)
        if "poll" in request:
            pid = request["poll"]
            if codes[pid] is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                codes[pid] = os.waitstatus_to_exitcode(status) if ended else None
            reply = codes[pid]
        else:
            reply = os.fork()
            if reply == 0:
                _run_child(request)
            codes[reply] = None
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    for pid, code in codes.items():
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    # All that a daemon loads, so that its children have it.
    import uvloop  # noqa: F401

    import nsqd.__main__
    import nsqd.daemon  # noqa: F401

    _serve(sys.stdin, sys.stdout)
