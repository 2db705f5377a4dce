"""Changes: each is written down, posted to the notification endpoint, and followed by a round.

Both APIs make their changes through this.
"""

from nsqadmin.access.audit import AuditTrail, Entry
from nsqadmin.access.guard import Guard
from nsqadmin.access.notifications import Notifications
from nsqadmin.access.roles import Caller, Right
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.commands import Outcome
from nsqd.http.server import HttpError, Request


class Changes:
    """The audit, notification and refresh around every change."""

    def __init__(
        self,
        guard: Guard,
        trail: AuditTrail,
        notifications: Notifications,
        collector: Collector,
    ) -> None:
        self.guard = guard
        self.trail = trail
        self._notifications = notifications
        self._collector = collector

    def demand(self, request: Request, caller: Caller, right: Right, action: str) -> None:
        """See that a caller has a right.

        Raises:
            HttpError: 403; it is written down.
        """
        if not caller.may(right):
            self.trail.note_refused(self.new_entry(request, caller, action), "FORBIDDEN")
            raise HttpError(403, "FORBIDDEN")

    def new_entry(self, request: Request, caller: Caller, action: str) -> Entry:
        """Make an entry of the audit trail."""
        agent = request.headers.get(b"user-agent", b"").decode("latin-1")
        return self.trail.new_entry(
            action,
            user=caller.user,
            role=caller.role.label,
            remote=request.remote,
            agent=agent,
        )

    def note_cross_site(self, request: Request, code: str) -> None:
        """Write down a change that a page of another site asked for."""
        agent = request.headers.get(b"user-agent", b"").decode("latin-1")
        action = f"{request.method} {request.path[:200]}"
        entry = self.trail.new_entry(action, user="", role="", remote=request.remote, agent=agent)
        self.trail.note_refused(entry, code)

    async def begin(
        self,
        request: Request,
        caller: Caller,
        action: str,
        *,
        topic: str = "",
        channel: str = "",
        node: str = "",
    ) -> Entry:
        """Write down a change that is about to be made, and have it posted.

        Args: action: as in the notifications of the Go nsqadmin, such as `pause_topic`.

        Raises:
            HttpError: 503, it can't be written down.
        """
        entry = self.new_entry(request, caller, action)
        entry.topic, entry.channel, entry.node = topic, channel, node
        await self.trail.begin(entry)
        self._notifications.note(request, action, topic=topic, channel=channel, node=node)
        return entry

    def notify(
        self, request: Request, action: str, *, topic: str, channel: str = "", node: str = ""
    ) -> None:
        """Have one of several changes posted that were begun as one entry."""
        self._notifications.note(request, action, topic=topic, channel=channel, node=node)

    async def finish(self, entry: Entry, outcomes: list[Outcome]) -> None:
        """Write down how it went, and have the collector look."""
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        entry.outcomes = [
            {"node": outcome.daemon, "text": outcome.error or "done"} for outcome in outcomes
        ]
        await self.trail.finish(
            entry,
            "failed" if failed else "done",
            f"{len(outcomes) - len(failed)} done, {len(failed)} failed",
        )
        self._collector.hurry()
