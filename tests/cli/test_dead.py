"""Case 41: `nsq dead`: every letter is among the dead or in the target, whenever it is killed."""

import json
import random
import time

from tests.cli.conftest import Shell, mpub, node
from tests.support.daemon_process import DaemonProcess

BODIES = [b'{"number": %d}' % number for number in range(40)]


def bodies_at(shell: Shell, daemon: DaemonProcess, topic: str, channel: str) -> list[bytes]:
    argv = ("tail", topic, "--channel", channel, "--until-empty", "-a", node(daemon))
    return shell.run("nsq", *argv).stdout.splitlines()


def test_letters_are_listed_replayed_and_dropped(shell: Shell, daemon: DaemonProcess) -> None:
    at = ("-a", node(daemon))
    shell.nsq("dead", "replay", "t", *at, code=3)
    mpub(daemon, "t.dead", BODIES)
    daemon.request("POST", "/topic/create?topic=t")

    assert json.loads(shell.nsq("dead", "ls", "--json", *at)) == {
        "topic": "t.dead", "letters": 40, "channels": 0, "ever": 40,
    }  # fmt: skip
    would = shell.nsq("dead", "replay", "t", "--dry-run", *at)
    assert would == "would replay to t 40 letters of t.dead\n"
    assert daemon.find_channel("t.dead", "nsq_dead") is None

    shell.nsq("dead", "replay", "t.dead", "--limit", "3", "-q", *at)
    report = shell.nsq("dead", "replay", "t", "--where", "number<10", "--json", "-q", *at)
    assert json.loads(report) == {"action": "replay", "done": 7, "kept": 30}
    assert sorted(bodies_at(shell, daemon, "t", "c")) == BODIES[:10]
    found = daemon.wait_for_channel("t.dead", "nsq_dead", in_flight_count=0)
    assert found["depth"] + found["deferred_count"] == 30
    shell.nsq("dead", "drop", "t", *at, code=2)
    shell.nsq("dead", "drop", "t", "-y", *at)
    daemon.wait_for_channel("t.dead", "nsq_dead", depth=0, deferred_count=0)


def test_an_interrupted_replay_loses_nothing(shell: Shell, our_daemon: DaemonProcess) -> None:
    mpub(our_daemon, "t.dead", BODIES)
    our_daemon.request("POST", "/topic/create?topic=t")
    argv = ("dead", "replay", "t", "--rate", "200", "--msg-timeout", "1s", "-a", node(our_daemon))
    chance = random.Random(41)
    for _ in range(3):
        with shell.start("nsq", *argv) as process:
            # The channel of the letters, which the first run makes: then it has begun.
            our_daemon.wait_for_channel("t.dead", "nsq_dead")
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
    our_daemon.wait_for_channel("t.dead", "nsq_dead", in_flight_count=0)

    left = bodies_at(shell, our_daemon, "t.dead", "nsq_dead")
    replayed = bodies_at(shell, our_daemon, "t", "c")
    assert set(left) | set(replayed) == set(BODIES)
