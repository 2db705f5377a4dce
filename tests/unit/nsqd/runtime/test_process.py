"""How a daemon ends: every signal is ignored as in Go or ends it in good order; its exit code."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from nsqd.config.flags import OptionsError
from nsqd.runtime.listen import ListenError
from nsqd.runtime.process import Ending, StartError, run_daemon

# The default actions of all other signals that can be caught leave the process alive.
FATAL = {
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGTRAP", "SIGABRT", "SIGUSR1", "SIGUSR2", "SIGPIPE"),
    *("SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGIO"),
    *("SIGPWR", "SIGSYS", "SIGRTMIN", "SIGRTMAX"),
}
FAULTS = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"}

# Prints what each signal leads to, in a process of its own: handlers belong to the whole process.
PROGRAM = textwrap.dedent("""
    import asyncio, os, signal, sys, uvloop
    from nsqd.runtime.process import handle_signals, ignore_signals
    async def main():
        loop = asyncio.get_running_loop()
        seen = []
        handle_signals(
            loop, stop=lambda code: seen.append(str(code)), reload=lambda: seen.append("reload")
        )
        for name in sys.argv[2:]:
            os.kill(os.getpid(), getattr(signal, name))
            for _ in range(200):
                await asyncio.sleep(0.001 if seen else 0)
                if seen:
                    break
            print(name, *seen)
            seen.clear()
    ignore_signals()
    make_loop = uvloop.new_event_loop if sys.argv[1] == "uvloop" else None
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
""")


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_no_signal_ends_it_out_of_hand(loop: str) -> None:  # O-3
    names = sorted(FATAL & set(dir(signal)))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, loop, *names], capture_output=True, text=True, check=True
    )

    effects = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert list(effects) == names
    assert {name for name in names if effects[name] == "0"} == {"SIGINT", "SIGTERM"}
    assert effects["SIGHUP"] == "reload"
    dumping = {name for name in names if effects[name] == "2"}
    assert dumping == {"SIGQUIT", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGSTKFLT"} & set(names)
    assert done.stderr.count("(most recent call first)") == len(dumping)


def test_the_list_is_complete() -> None:
    """A signal that kills by default and is in neither list would be one that was forgotten."""
    for number in signal.valid_signals():
        name = signal.Signals(number).name if number in set(signal.Signals) else "SIGRTMIN"
        if name in FATAL | FAULTS | {"SIGKILL", "SIGSTOP"}:
            continue
        child = os.fork()
        if child == 0:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            continue
        assert os.WIFEXITED(status), name


class FakeDaemon:
    """Stands in for a daemon; ends when it has started."""

    ports = "TCP port 1"

    def __init__(self, error: Exception | None = None) -> None:
        self.ending = Ending()
        self.calls: list[str] = []
        self._error = error

    async def start(self) -> None:
        self.calls.append("start")
        if self._error is not None:
            raise self._error
        self.ending.request(0)
        self.ending.request(3)
        self.ending.request(2)

    def reload(self) -> None:
        self.calls.append("reload")

    async def close(self) -> None:
        self.calls.append("close")


@pytest.fixture(autouse=True)
def _restored_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def run(daemon: FakeDaemon) -> int:
    return run_daemon("tool", lambda: daemon, loop_factory=None)


def test_the_highest_exit_code_that_was_asked_for_counts() -> None:
    daemon = FakeDaemon()

    assert run(daemon) == 3

    assert daemon.calls == ["start", "close"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StartError("failed to load metadata"), "FATAL: failed to load metadata"),
        (OptionsError("--size is wrong"), "FATAL: failed to instantiate tool - --size is wrong"),
        (ListenError("in use"), "FATAL: failed to instantiate tool - in use"),
    ],
)
def test_a_daemon_that_cannot_start_is_closed_and_says_why_in_one_line(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = FakeDaemon(error)

    assert run(daemon) == 1

    assert daemon.calls == ["start", "close"]
    assert re.fullmatch(rf"\[tool\] \S+ \S+ {re.escape(line)}\n", capsys.readouterr().err)


async def test_an_error_that_escaped_a_callback_ends_the_daemon_unless_the_machine_caused_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ending = Ending()
    loop = asyncio.get_running_loop()

    ending.on_loop_exception(loop, {"message": "accept", "exception": OSError(24, "too many")})
    assert not ending.is_requested

    ending.on_loop_exception(loop, {"message": "callback", "exception": KeyError("x")})
    assert await ending.wait() == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "CRITICAL"]
