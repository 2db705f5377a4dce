"""DoorCounts: the commands, requests and connections that a door refused or gave up, by cause.

Each door (TCP, HTTP) has one, counts where it answers, and /metrics shows them. Nothing is
counted for a client that is served: an error costs a count, a message costs nothing.
"""

from collections import Counter
from enum import Enum


class Refusal(Enum):
    """Why a command or request was refused. Wrong names and commands are not counted."""

    QUEUE_FULL = "queue_full"  # --max-depth, --max-depth-bytes
    DISK = "disk"  # the disk failed, or is full
    FREE_SPACE = "free_space"  # --min-free-disk
    DRAINING = "draining"
    EXITING = "exiting"  # nsqd stops, or the topic or channel is being deleted
    AUTH = "auth"  # no right, no token, no TLS, or the auth server is out of reach
    SIZE = "size"  # larger than allowed; over HTTP every 413


class Failure(Enum):
    """Why a connection was refused or ended here, though its client had not asked for it."""

    TOO_MANY = "too_many"  # --max-connections
    NO_DESCRIPTORS = "no_descriptors"  # the process may not open more files
    MAGIC = "magic"  # no protocol named in time, or an unknown one
    TLS = "tls"  # the handshake failed, or took too long
    SILENT = "silent"  # no command for two heartbeat intervals, or half a request
    UNREAD = "unread"  # does not read what it is sent
    PROTOCOL = "protocol"  # a command that is wrong, too long, or not allowed now
    INTERNAL = "internal"  # our fault


REFUSED = frozenset({Failure.TOO_MANY, Failure.NO_DESCRIPTORS})

_REFUSAL_OF_STATUS = {401: Refusal.AUTH, 403: Refusal.AUTH, 413: Refusal.SIZE}


class DoorCounts:
    """The counts of one door."""

    def __init__(self) -> None:
        self.refusals: Counter[Refusal] = Counter()
        self.failures: Counter[Failure] = Counter()

    def note_status(self, status: int) -> None:
        """Count a request that was refused before the broker saw it.

        Args:
            status: of the reply: 400 or more.
        """
        refusal = _REFUSAL_OF_STATUS.get(status)
        if refusal is not None:
            self.refusals[refusal] += 1
        elif status == 408:
            self.failures[Failure.SILENT] += 1
