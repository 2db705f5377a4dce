"""Case 40: `nsq each`: the exit code of a program is the answer to its message."""

import json

from tests.cli.conftest import Shell, drain, mpub, node, running
from tests.support.daemon_process import DaemonProcess
from tests.support.waiting import wait_until

HASTY = ("--opt", "max_backoff_duration=0")
# Does what its message says.
PROGRAM = """read -r word rest
echo "$word $NSQ_TOPIC $NSQ_ATTEMPTS ${#NSQ_ID} ${#NSQ_TIMESTAMP}" >> seen
case $word in
  zero) exit 0 ;; one) exit 1 ;; dead) exit 65 ;; signal) kill -9 $$ ;;
  slow) sleep 3 ;; loud) head -c 1000000 /dev/zero | tr '\\0' x ;; stuck) sleep 60 ;;
esac"""


def test_exit_codes_are_answers(shell: Shell, daemon: DaemonProcess) -> None:
    words = [b"zero", b"one", b"dead", b"signal", b"slow", b"loud", b"stuck"]
    mpub(daemon, "t", words)
    # More than a pipe holds, for a program that ends without reading it.
    daemon.publish("t", b"zero " + b"x" * 200_000)
    argv = ("each", "t", "c", "-j", "8", "--json", "--msg-timeout", "1s", "--kill-after", "4s")
    with running(
        shell, "nsq", *argv, *HASTY, "-a", node(daemon), "--", "sh", "-c", PROGRAM
    ) as process:
        daemon.wait_for_channel("t", "c", deferred_count=3, in_flight_count=0, depth=0)
    [line] = [each for each in process.stdout.splitlines() if each.endswith(b"}")]
    report = json.loads(line[line.index(b"{") :])

    assert (report["done"], report["dead"], report["failed"]) == (4, 1, 3)
    assert process.stdout.count(b"x") >= 1_000_000
    seen = sorted((shell.home / "seen").read_text().splitlines())
    # The slow one ran once: it was touched.
    assert [line.split()[0] for line in seen] == sorted(
        [word.decode() for word in words] + ["zero"]
    )
    assert seen[0] == "dead t 1 16 19"
    dead = shell.nsq("tail", "t.dead", "--channel", "c", "-n", "1", "-a", node(daemon))
    assert dead == "dead\n"


def test_a_program_that_never_reads_and_a_signal(shell: Shell, our_daemon: DaemonProcess) -> None:
    our_daemon.publish("t", b"x" * 300_000, b"y" * 300_000)
    program = "echo begun >> seen; test $NSQ_COUNT = 1 && sleep 1"
    argv = ("each", "t", "c", "-j", "1", "-a", node(our_daemon), "--", "sh", "-c", program)
    with running(shell, "nsq", *argv) as process:
        wait_until(lambda: (shell.home / "seen").exists())
        process.end()
    # The one that ran has ended and is finished, the other waits for somebody else.
    found = our_daemon.wait_for_channel("t", "c", in_flight_count=0)
    assert found["depth"] == 1


def test_batches(shell: Shell, our_daemon: DaemonProcess) -> None:
    mpub(our_daemon, "t", [b"%d" % number for number in range(10)])
    program = 'echo "$NSQ_COUNT $(tr "\\0" +)" >> seen'
    argv = ("each", "t", "c", "-j", "1", "--batch", "5", "-q", "-a", node(our_daemon))
    with running(shell, "nsq", *argv, "--", "sh", "-c", program):
        drain(our_daemon, "t", "c", 10)

    lines = (shell.home / "seen").read_text().splitlines()
    assert lines == ["5 0+1+2+3+4", "5 5+6+7+8+9"]
