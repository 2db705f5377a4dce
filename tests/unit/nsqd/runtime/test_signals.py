"""Every signal that ends a Python program is ignored as in Go, or ends the daemon in good order."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

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
    from nsqd.runtime.signals import handle_signals, ignore_signals
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
