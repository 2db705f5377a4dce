"""View: the cluster as the last round of the collector has found it; read by all viewers.

A view is complete when it is published and never changes afterwards, but for the nodes' states,
which later rounds go on with.
"""

import enum
from dataclasses import dataclass, field
from typing import Final

from nsqadmin.cluster.discovery import LookupdState, Producer
from nsqadmin.cluster.figures import Key, Sample
from nsqadmin.cluster.merge import Merged, Totals

# How long rounds can be told apart: a `since` before that gets everything.
REMEMBERED_ROUNDS: Final = 240


class NodeStatus(enum.Enum):
    """UP has answered the last time; STALE has not; GONE is not known to nsqlookupd any more."""

    UP = "up"
    STALE = "stale"
    GONE = "gone"


@dataclass(slots=True)
class Node:
    """One nsqd, as far as it is known."""

    name: str
    producer: Producer
    status: NodeStatus = NodeStatus.STALE
    sample: Sample | None = None
    # The sample before, for rates; None after a failure, so that a gap stays a gap.
    earlier: Sample | None = None
    error: str | None = "not asked yet"
    failure_count: int = 0
    # By the steady clock.
    asked_at: float = 0.0
    answered_at: float | None = None
    due_at: float = 0.0
    gone_at: float | None = None
    is_being_asked: bool = False
    totals: Totals = field(default_factory=Totals)
    # Its extensions, and the start time of the process that named them.
    extensions: frozenset[str] | None = None
    extensions_start_s: int = -1

    @property
    def is_counted(self) -> bool:
        """Whether its figures are part of the totals."""
        return self.sample is not None and self.status is not NodeStatus.GONE

    def age_ms(self, now: float) -> int | None:
        """Return how old its figures are."""
        if self.answered_at is None:
            return None
        return max(round((now - self.answered_at) * 1000), 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in words, and advice."""

    severity: str  # error, warning, info
    kind: str
    text: str
    hint: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    lookupd: str = ""
    since_ms: int = 0

    def as_json(self) -> dict[str, object]:
        """Return its members, without the names that it does not have."""
        members: dict[str, object] = {"severity": self.severity, "kind": self.kind}
        for name in ("topic", "channel", "node", "lookupd"):
            if getattr(self, name):
                members[name] = getattr(self, name)
        return members | {"text": self.text, "hint": self.hint, "since_ms": self.since_ms}


@dataclass(slots=True)
class View:
    """One round's outcome."""

    seq: int
    time_ms: int  # wall clock
    at: float  # steady clock
    merged: Merged = field(default_factory=Merged)
    nodes: dict[str, Node] = field(default_factory=dict)
    lookupds: list[LookupdState] = field(default_factory=list)
    # Topics that an nsqlookupd knows, whether or not a node has them.
    known_topics: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    more_findings: int = 0
    took_ms: int = 0
    interval_ms: int = 0
    is_stretched: bool = False
    # The round in which each row last changed, and the rows that are gone.
    changed: dict[Key, int] = field(default_factory=dict)
    removed: dict[Key, int] = field(default_factory=dict)
    first_seq: int = 0  # `since` before this gets everything
    has_round: bool = False

    def nodes_with(self, topic: str) -> list[Node]:
        """Return the nodes that have a topic, in order of their names."""
        key = (topic, "")
        return [
            node
            for _, node in sorted(self.nodes.items())
            if node.sample is not None
            and key in node.sample.queues
            and node.status is not NodeStatus.GONE
        ]
