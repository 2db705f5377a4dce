"""Commands in the log."""

import pytest

from nsqd.protocol import commands
from nsqd.protocol.commands import ClientState, Command, describe


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (commands.Publish("t", [b"secret", b"secret"]), "PUB t count=2"),
        (commands.MultiPublish("t", [b"secret"]), "MPUB t count=1"),
        (commands.DeferredPublish("t", 5, [b"secret"] * 2), "DPUB t 5 count=2"),
        (commands.Requeue([b"0123456789abcdef", b"\xff"], 5), "REQ 5 0123456789abcdef \ufffd"),
        (commands.Finish([b"0123456789abcdef", b"\xff" * 2]), "FIN 0123456789abcdef \ufffd\ufffd"),
        (commands.Identify(b"secret"), "Identify"),
        (commands.Auth(b"secret"), "Auth"),
        (commands.Subscribe("t", "c"), "Subscribe(topic='t', channel='c')"),
        (commands.Ready(5), "Ready(count=5)"),
        (commands.StartClose(), "StartClose()"),
    ],
)
def test_a_command_is_described_without_bodies_and_secrets(command: Command, text: str) -> None:
    assert describe(command) == text


def test_states_have_the_numbers_that_stats_shows() -> None:
    assert {state.name: state.value for state in ClientState} == {
        "INIT": 0,
        "SUBSCRIBED": 3,
        "CLOSING": 4,
    }
