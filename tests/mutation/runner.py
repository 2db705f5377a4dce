"""A process that has imported all but our own code, and forks to run tests: no start of Python.

    python -m tests.mutation.runner

Reads a line of JSON for each run, {"tests": [...], "timeout_s": ...}, and answers with one: the
status of pytest, None if it took too long, and its output.
"""

import importlib
import json
import os
import select
import signal
import sys
import tempfile

import pytest

IMPORTED = (
    *("asyncio", "ssl", "sqlite3", "unittest.mock", "uvloop", "httptools", "snappy"),
    *("isal.isal_zlib", "hypothesis.stateful", "hypothesis.internal.conjecture.engine"),
)
# Begins a line of the output with a test that is run: one that never ends is not told otherwise.
RUNS = "RUNS "
OPTIONS = [
    *("-xq", "-p", "no:cacheprovider", "--tb=no", "--assert=plain"),
    # Hypothesis would take the error of an alarm for that of an example, and try it again for ever.
    *("-o", "timeout_method=thread"),
]


def main() -> int:
    """Run what stdin asks for until its end; return 0."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile("w+") as output:
            status = _run(request["tests"], request["timeout_s"], output.fileno())
            output.seek(0)
            sys.stdout.write(json.dumps({"status": status, "output": output.read()}) + "\n")
            sys.stdout.flush()
    return 0


def _run(tests: list[str], timeout_s: float, output_fd: int) -> int | None:
    pid = os.fork()
    if pid == 0:
        _test(tests, output_fd)
    descriptor = os.pidfd_open(pid)
    try:
        has_ended = bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)
        # With all that it has started.
        os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if has_ended else None


class _Log:
    """A plugin of pytest that names each test before it runs."""

    def __init__(self, output_fd: int) -> None:
        self._output_fd = output_fd

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.write(self._output_fd, f"\n{RUNS}{nodeid}\n".encode())


def _test(tests: list[str], output_fd: int) -> None:
    """Run the tests, and leave without what Python does at its end."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    status = 3  # pytest's own for an error within
    try:
        status = int(pytest.main([*OPTIONS, *tests], plugins=[_Log(output_fd)]))
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
