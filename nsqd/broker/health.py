"""Health: whether the disk works, and if not, which operation failed and why.

Two kinds of failure, which end differently:

* An *append* was refused, and with it a publish: nothing is lost, and the next append that succeeds
  anywhere makes it good, as in NSQ. If none comes, because load balancers have taken the node away,
  `DiskWatch` writes a file of its own to find out.
* An operation that is *repeated* until it succeeds failed: a sync of a queue, a read, nsqd.dat. It
  counts until that same operation has succeeded, whether or not others do.

A disk that is almost full is a third reason to be sent no messages: see `DiskWatch`.
"""

import errno
from collections.abc import Callable

from nsqd.broker.errors import cause_of

HEALTHY = "OK"
# The operation that keeps nsqd.dat.
METADATA = "nsqd.dat"
# These tell that a file has no room now: it may have room later, and the disk is not at fault.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Health:
    """The state of the data path, as /ping and /stats tell it."""

    __slots__ = (
        "_failures",
        "_refused_write",
        "_shortage",
        "free_bytes",
        "on_append",
        "on_failure",
        "status",
    )

    def __init__(self) -> None:
        # `OK`, or `NOK - ` and the oldest reason.
        self.status = HEALTHY
        # The room on the data path when it was last looked at; None if that was never.
        self.free_bytes: int | None = None
        # Called when an operation has failed that had not failed before.
        self.on_failure: Callable[[], object] | None = None
        # Called after each append, if set.
        self.on_append: Callable[[], object] | None = None
        self._refused_write: str | None = None
        self._failures: dict[str, str] = {}
        self._shortage: str | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether no operation fails and the disk has room."""
        return self.status == HEALTHY

    @property
    def has_refused_write(self) -> bool:
        """Whether the last append failed, and no write has succeeded since."""
        return self._refused_write is not None

    def find_failure(self, source: str) -> str | None:
        """Return why that operation failed, None if its last run did not."""
        return self._failures.get(source)

    def find_creation_obstacle(self) -> str | None:
        """Return why a topic or channel made now would be lost or unusable, None if it is fine."""
        return self._shortage or self._refused_write or self._failures.get(METADATA)

    def wrote(self, name: str, error: OSError | None) -> None:
        """Note how an append to a queue ended."""
        if error is not None:
            self._refused_write = f"{name}: {cause_of(error)}"
            self._update(has_failed=True)
            return
        if self._refused_write is not None:
            self._refused_write = None
            self._update()
        if self.on_append is not None:
            self.on_append()

    def repeated(self, source: str, error: OSError | None) -> None:
        """Note how an operation ended that is repeated until it succeeds."""
        if error is not None:
            is_new = source not in self._failures
            self._failures[source] = cause_of(error)
            self._update(has_failed=is_new)
        elif self._failures.pop(source, None) is not None:
            self._update()

    def run_short(self, shortage: str | None) -> None:
        """Note that the disk is almost full, or with None that it is not."""
        self._shortage = shortage
        self._update()

    def _update(self, *, has_failed: bool = False) -> None:
        if self._failures:
            source, cause = next(iter(self._failures.items()))
            self.status = f"NOK - {source}: {cause}"
        elif self._refused_write is not None:
            self.status = f"NOK - {self._refused_write}"
        elif self._shortage is not None:
            self.status = f"NOK - {self._shortage}"
        else:
            self.status = HEALTHY
        if has_failed and self.on_failure is not None:
            self.on_failure()
