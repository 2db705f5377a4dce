"""Which command is allowed in which state."""

import pytest

from nsqd.protocol.commands import Admission, ClientState
from nsqd.protocol.errors import FatalClientError

INIT, SUBSCRIBED, CLOSING = ClientState
ALL = set(ClientState)


@pytest.mark.parametrize(
    ("verb", "states"),
    [
        (b"IDENTIFY", {INIT}),
        (b"AUTH", {INIT}),
        (b"SUB", {INIT}),
        (b"RDY", {SUBSCRIBED, CLOSING}),
        (b"FIN", {SUBSCRIBED, CLOSING}),
        (b"REQ", {SUBSCRIBED, CLOSING}),
        (b"TOUCH", {SUBSCRIBED, CLOSING}),
        (b"CLS", {SUBSCRIBED}),
        (b"NOP", ALL),
        (b"PUB", ALL),
        (b"MPUB", ALL),
        (b"DPUB", ALL),
        (b"no command", ALL),  # refused by its name, later
    ],
)
def test_a_command_is_allowed_in_its_states(verb: bytes, states: set[ClientState]) -> None:
    # W-41, W-73, W-80, W-89, W-101
    for state in ClientState:
        if state in states:
            is_ignored = verb == b"RDY" and state is CLOSING  # W-103
            assert Admission(state).admits(verb) == (not is_ignored)
        else:
            with pytest.raises(FatalClientError) as caught:
                Admission(state).admits(verb)
            assert caught.value.frame_data == b"E_INVALID cannot %b in current state" % verb


@pytest.mark.parametrize("verb", [b"AUTH", b"SUB", b"NOP", b"PUB", b"FIN", b"no command"])
def test_required_tls_comes_before_the_state(verb: bytes) -> None:
    # W-127
    for state in ClientState:
        with pytest.raises(FatalClientError) as caught:
            Admission(state, is_tls_missing=True).admits(verb)
        assert caught.value.frame_data == b"E_INVALID cannot %b in current state (TLS required)" % (
            verb
        )


def test_only_identify_is_allowed_before_required_tls() -> None:
    assert Admission(is_tls_missing=True).admits(b"IDENTIFY")


def test_a_consumer_needs_heartbeats() -> None:
    for verb in (b"NOP", b"PUB", b"IDENTIFY"):
        assert Admission(has_heartbeats=False).admits(verb)

    with pytest.raises(FatalClientError) as caught:
        Admission(has_heartbeats=False).admits(b"SUB")

    assert caught.value.frame_data == b"E_INVALID cannot SUB with heartbeats disabled"


def test_the_state_of_a_consumer_comes_before_its_heartbeats() -> None:
    with pytest.raises(FatalClientError, match="cannot SUB in current state"):
        Admission(SUBSCRIBED, has_heartbeats=False).admits(b"SUB")
