"""The states of a client, and which commands are allowed in which."""

from enum import IntEnum

from nsqd.protocol.errors import ErrorCode, FatalClientError


class ClientState(IntEnum):
    """The states that /stats shows; 1 and 2 are never used for clients."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


_CONSUMING = (ClientState.SUBSCRIBED, ClientState.CLOSING)
_ALLOWED_STATES: dict[bytes, tuple[ClientState, ...]] = {
    b"IDENTIFY": (ClientState.INIT,),
    b"AUTH": (ClientState.INIT,),
    b"SUB": (ClientState.INIT,),
    b"RDY": _CONSUMING,
    b"FIN": _CONSUMING,
    b"REQ": _CONSUMING,
    b"TOUCH": _CONSUMING,
    b"CLS": (ClientState.SUBSCRIBED,),
}


def check_state(verb: bytes, state: ClientState) -> None:
    """Check that a command is allowed in a state; publishing and NOP always are.

    Raises:
        FatalClientError: it is not.
    """
    allowed = _ALLOWED_STATES.get(verb)
    if allowed is not None and state not in allowed:
        raise FatalClientError(ErrorCode.E_INVALID, b"cannot " + verb + b" in current state")
