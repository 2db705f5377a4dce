"""Plans: what goes wrong, and at which file operation of the daemon.

    ACTION:OPERATION:KIND[:N[+]]        before:fsync:segment:3   EIO:write:*:1+   after:send:ok

The N-th operation of that sort is hit, and with `+` all later ones too. `*` stands for any.

* before, after: the process kills itself with SIGKILL before, or after, the operation;
* tear: it writes a part of what it was to write, and kills itself;
* short: it writes a part and says so, as a disk that is almost full does;
* lie: it does not write, or fsync, but says that it did;
* stall: the operation takes STALL_S;
* any name of `errno`: the operation fails with that error, and is not done.
"""

import errno
from dataclasses import dataclass, field

KILLS = ("before", "after", "tear")
_ACTIONS = (*KILLS, "short", "lie", "stall")
STALL_S = 1.0
# What can be asked of the data directory, and what only a failure makes sense for.
CHANGES = ("create", "write", "fsync", "rename", "unlink", "truncate", "mkdir", "rmdir", "link")
QUESTIONS = ("open", "read", "stat", "list", "statvfs")
SEND = "send"


@dataclass(slots=True)
class Rule:
    """One thing to go wrong."""

    action: str
    operation: str
    kind: str
    first: int = 1
    is_lasting: bool = False
    _count: int = field(default=0, init=False)

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Read a rule.

        Raises:
            ValueError: this is none.
        """
        action, operation, kind, *rest = text.split(":")
        if action not in _ACTIONS and not hasattr(errno, action):
            raise ValueError(f"unknown action in {text!r}")
        if operation not in (*CHANGES, *QUESTIONS, SEND, "*"):
            raise ValueError(f"unknown operation in {text!r}")
        number = rest[0] if rest else "1"
        return cls(action, operation, kind, int(number.rstrip("+")), number.endswith("+"))

    @property
    def error_number(self) -> int | None:
        """The error that the operation fails with, None if the action is another."""
        number: int | None = getattr(errno, self.action, None)
        return number

    def hits(self, operation: str, kind: str) -> bool:
        """Whether it is the turn of this operation, which is counted."""
        if self.operation not in ("*", operation) or self.kind not in ("*", kind):
            return False
        self._count += 1
        return self._count == self.first or (self.is_lasting and self._count > self.first)


def pair_ports(nsqd_port: int, client_port: int) -> int:
    """Both ends of a connection in one number: clients of TCP and HTTP may have the same port."""
    return nsqd_port << 16 | client_port


def kind_of(path: str) -> str:
    """What a file of the data directory is, by its path there; a temporary one is what it becomes.

    segment, checksums, meta, nsqd, bad, directory, archive for its segments, or the end of the name
    of what else belongs to a queue.
    """
    if not path:
        return "directory"
    name = path.rpartition("/")[2]
    if name.endswith(".tmp"):
        name = name.removesuffix(".tmp").rpartition(".")[0]
    if name.startswith("nsqd."):
        return "nsqd"
    _, separator, end = name.rpartition(".diskqueue.")
    if not separator:
        return "other"
    if ".bad" in end:
        return "bad"
    if end == "meta.dat":
        return "meta"
    number, _, ending = end.partition(".")
    if number.isdigit() and ending == "crc":
        return "checksums"
    if number.isdigit():
        return "archive" if path.startswith("archive/") else "segment"
    return number
