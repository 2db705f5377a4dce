"""Admission: which commands a client may send at the moment.

nsqd checks this before it looks at a command's parameters, so the parser holds the value. The
connection replaces it when the client subscribes, closes, begins TLS or changes its heartbeats.
"""

from dataclasses import dataclass
from enum import IntEnum

from nsqd.protocol.errors import ErrorCode, FatalClientError


class ClientState(IntEnum):
    """The states that /stats shows; nsqd never gives 1 and 2 to clients."""

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


@dataclass(frozen=True, slots=True)
class Admission:
    """The facts that admit or refuse a command by its verb alone."""

    state: ClientState = ClientState.INIT
    is_tls_missing: bool = False  # TLS is required, and the client has not begun it
    has_heartbeats: bool = True

    def admits(self, verb: bytes) -> bool:
        """Say whether a command counts; False: it is skipped, parameters unread.

        Publishing and NOP are allowed in every state.

        Raises:
            FatalClientError: the client may not send the command now.
        """
        if self.is_tls_missing and verb != b"IDENTIFY":
            text = b"cannot " + verb + b" in current state (TLS required)"
            raise FatalClientError(ErrorCode.E_INVALID, text)
        allowed = _ALLOWED_STATES.get(verb)
        if allowed is not None and self.state not in allowed:
            raise FatalClientError(ErrorCode.E_INVALID, b"cannot " + verb + b" in current state")
        if verb == b"SUB" and not self.has_heartbeats:
            raise FatalClientError(ErrorCode.E_INVALID, "cannot SUB with heartbeats disabled")
        return not (verb == b"RDY" and self.state is ClientState.CLOSING)
