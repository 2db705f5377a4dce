"""Limits: how much the queues of a topic may hold, for how long, and how often a message is tried.

A limit is declared here and nowhere else. From its field of `Limits` follow its flag, its key in
the config file, in nsqd.dat and in /topic/limits, its gauge and its row in the README (to be pasted
there); the console has words for it in view_limits.js. One that refuses publishes also stands in
`has_bound`. A limit of the whole node is an option of its own, not one of these. The flags hold for
every topic; `nsqd.broker.limits` has the values of single topics, and enforces all.
"""

# ruff: noqa: RUF009 - flag() makes dataclass fields; ruff takes them for values.

import re
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from nsqd.config import kinds
from nsqd.config.flags import Flag, declared_flags, flag
from nsqd.config.kinds import DURATION, INT, TEXT, Kind

# The largest number of attempts that a message can carry.
_ATTEMPTS_MAX = 65535
_SUFFIX = re.compile(r"[.a-zA-Z0-9_-]{0,63}")


class DepthPolicy(Enum):
    """How a publish to a full queue ends."""

    REJECT = "reject"
    DROP_OLDEST = "drop-oldest"


def _parse_depth_policy(text: str) -> DepthPolicy:
    try:
        return DepthPolicy(text)
    except ValueError:
        raise ValueError("must be reject or drop-oldest") from None


DEPTH_POLICY: Kind[DepthPolicy] = kinds.special(
    "|".join(policy.value for policy in DepthPolicy),
    _parse_depth_policy,
    lambda policy: policy.value,
    to_json=lambda policy: policy.value,
    from_json=lambda value: _parse_depth_policy(str(value)),
)


def is_valid_suffix(suffix: str) -> bool:
    """Whether a topic's name may end like that; empty stands for no dead letters."""
    return _SUFFIX.fullmatch(suffix) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a topic; 0 and "" stand for no limit."""

    max_depth: int = flag(
        "max-depth",
        0,
        INT,
        "messages in the queue of a topic or channel, waiting or deferred but not in flight;"
        " 0 is no limit",
        minimum=0,
        gauge_help="Messages that each queue may hold; 0 is no limit.",
    )
    max_depth_bytes: int = flag(
        "max-depth-bytes",
        0,
        INT,
        "the same in bytes as on disk, which is 30 more for each message; 0 is no limit",
        minimum=0,
        noun="bytes",
        gauge_help="Bytes that each queue may hold; 0: no limit.",
    )
    max_depth_policy: DepthPolicy = flag(
        "max-depth-policy",
        DepthPolicy.REJECT,
        DEPTH_POLICY,
        "what becomes of a publish beyond that: reject refuses it as a whole, drop-oldest takes it"
        " and drops what has waited longest",
    )
    msg_ttl_s: float = flag(
        "msg-ttl",
        0.0,
        DURATION,
        "messages published longer ago than this are not delivered; 0s is no limit",
        minimum=0,
        gauge_help="How old messages may become; 0 is no limit.",
    )
    max_attempts: int = flag(
        "max-attempts",
        0,
        INT,
        "deliveries of a message; requeued or timed out after the last, it is not queued again;"
        " 0 is no limit",
        minimum=0,
        maximum=_ATTEMPTS_MAX,
        gauge_help="Deliveries of a message; 0 is no limit.",
    )
    dead_letter_topic_suffix: str = flag(
        "dead-letter-topic-suffix",
        "",
        TEXT,
        "what is too old or was tried too often is published to its topic's name with this suffix,"
        " as in .dead; empty drops it",
        noun="suffix",
        accepts=(is_valid_suffix, "the end of a topic name"),
    )

    @property
    def has_bound(self) -> bool:
        """Whether a queue can be full."""
        return bool(self.max_depth or self.max_depth_bytes)

    @property
    def is_off(self) -> bool:
        """Whether no number is set; the policy and the suffix alone limit nothing."""
        return not any(
            value
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), int | float)
        )


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Limit:
    """The declaration of one limit."""

    field_name: str
    flag: Flag

    @property
    def name(self) -> str:
        """The key of the limit in nsqd.dat and in /topic/limits, which is that of the config."""
        assert self.flag.toml_key is not None
        return self.flag.toml_key

    @property
    def kind(self) -> Kind[Any]:
        """How its values are spelled."""
        return self.flag.kind

    @property
    def gauge(self) -> str | None:
        """The end of the name of its gauge, if it has one."""
        if self.flag.gauge_help is None:
            return None
        return f"{self.name}_seconds" if self.kind is DURATION else self.name

    def from_json(self, value: object) -> Any:
        """Read a value as nsqd.dat holds it.

        Raises:
            ValueError: it is of another kind or out of bounds; the text may follow the name.
        """
        assert self.kind.from_json is not None, "nsqd.dat holds every limit"
        read = self.kind.from_json(value)
        self.flag.check(read)
        return read

    def read(self, limits: Limits) -> Any:
        """Return the value that this limit has."""
        return getattr(limits, self.field_name)


# In the order of the flags.
LIMITS = tuple(Limit(name, declared) for name, declared in declared_flags(Limits).items())
