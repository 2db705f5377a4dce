"""Limits: how much the queues of a topic may hold, for how long, and how often a message is tried.

The flags say what holds for every topic. A topic may have values of its own, set over HTTP and kept
in nsqd.dat. Values only: what enforces them is in `bounds.py` and `topic_bounds.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Self

from nsqd.protocol.names import is_valid_topic_name

MAX_COUNT = 2**63 - 1


class DepthPolicy(Enum):
    """What happens to a publish for which there is no room."""

    REJECT = "reject"
    DROP_OLDEST = "drop-oldest"


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for a topic; 0 and "" stand for no limit."""

    max_depth: int = 0
    max_depth_bytes: int = 0
    max_depth_policy: DepthPolicy = DepthPolicy.REJECT
    msg_ttl_s: float = 0.0
    max_attempts: int = 0
    dead_letter_topic_suffix: str = ""

    @property
    def has_bound(self) -> bool:
        """Whether a queue can be full."""
        return bool(self.max_depth or self.max_depth_bytes)

    @property
    def is_off(self) -> bool:
        """Whether there is nothing to enforce."""
        return not (self.has_bound or self.msg_ttl_s or self.max_attempts)


@dataclass(frozen=True, slots=True)
class LimitOverrides:
    """The limits that a topic has of its own; None is the flag's value."""

    max_depth: int | None = None
    max_depth_bytes: int | None = None
    max_depth_policy: DepthPolicy | None = None
    msg_ttl_s: float | None = None
    max_attempts: int | None = None
    dead_letter_topic_suffix: str | None = None

    def over(self, flags: Limits) -> Limits:
        """Return the flags' limits with these in their place."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(flags, **{name: value for name, value in own.items() if value is not None})

    def to_json(self) -> dict[str, object]:
        """Return what is set, as nsqd.dat holds it: the TTL in nanoseconds."""
        values: dict[str, object] = {
            "max_depth": self.max_depth,
            "max_depth_bytes": self.max_depth_bytes,
            "max_depth_policy": self.max_depth_policy and self.max_depth_policy.value,
            "msg_ttl": None if self.msg_ttl_s is None else round(self.msg_ttl_s * 1e9),
            "max_attempts": self.max_attempts,
            "dead_letter_topic_suffix": self.dead_letter_topic_suffix,
        }
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, content: object) -> Self:
        """Read what `to_json` has made; null is as good as nothing, unknown keys are ignored.

        Raises:
            ValueError: it is not of that shape.
        """
        if content is None:
            return cls()
        if not isinstance(content, Mapping):
            raise ValueError("'limits' is not an object")
        policy = content.get("max_depth_policy")
        ttl_ns = _count(content, "msg_ttl")
        suffix = content.get("dead_letter_topic_suffix")
        if suffix is not None and not (isinstance(suffix, str) and is_valid_suffix(suffix)):
            raise ValueError("'dead_letter_topic_suffix' is not the end of a topic name")
        return cls(
            max_depth=_count(content, "max_depth"),
            max_depth_bytes=_count(content, "max_depth_bytes"),
            max_depth_policy=None if policy is None else DepthPolicy(policy),
            msg_ttl_s=None if ttl_ns is None else ttl_ns / 1e9,
            max_attempts=_count(content, "max_attempts"),
            dead_letter_topic_suffix=suffix,
        )


NO_LIMITS = Limits()
NO_OVERRIDES = LimitOverrides()


def is_valid_suffix(suffix: str) -> bool:
    """Whether a topic's name may end like that; empty stands for no dead letters."""
    return not suffix or (is_valid_topic_name(f"t{suffix}") and "#" not in suffix)


def _count(content: Mapping[object, object], key: str) -> int | None:
    value = content.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{key!r} is not a count")
    return value
