"""Filters that Spark pushes down, as far as they can be decided without reading a body.

Node, topic, channel, segment and is_bad are the same for a whole segment, so a filter on them
drops slices before anything is read. Ranges of `timestamp` and `timestamp_ns` narrow the bounds of
the read. All other filters go back to Spark.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from spark_jobs.read.columns import Constants
from spark_jobs.read.options import ReadOptions

_CONSTANT_COLUMNS = ("node", "topic", "channel", "segment", "is_bad")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
    In: lambda value, others: value in others,
    StringStartsWith: lambda value, other: value.startswith(other),
    StringEndsWith: lambda value, other: value.endswith(other),
    StringContains: lambda value, other: other in value,
}


@dataclass(frozen=True, slots=True)
class Predicate:
    """The filters that were accepted: conditions per segment, and bounds of the time."""

    filters: tuple[Filter, ...] = ()
    since_ns: int | None = None
    until_ns: int | None = None

    def accept(self, new: Filter) -> "Predicate | None":
        """Add a filter, or return None if that one must be left to Spark."""
        column = _column_of(new)
        if column in _CONSTANT_COLUMNS and _is_decidable(new):
            return Predicate((*self.filters, new), self.since_ns, self.until_ns)
        bounds = _time_bounds(new)
        if bounds is None:
            return None
        since_ns, until_ns = bounds
        return Predicate(
            self.filters,
            _latest(self.since_ns, since_ns),
            _earliest(self.until_ns, until_ns),
        )

    def admits(self, constants: Constants) -> bool:
        """Tell whether rows with these values can be among the results."""
        return all(
            _decide(each, getattr(constants, _column_of(each) or "")) is True
            for each in self.filters
        )

    def narrow(self, options: ReadOptions) -> ReadOptions:
        """Return the options with the tighter bounds of the time."""
        return replace(
            options,
            since_ns=_latest(options.since_ns, self.since_ns),
            until_ns=_earliest(options.until_ns, self.until_ns),
        )


NO_FILTERS = Predicate()


def _latest(one: int | None, other: int | None) -> int | None:
    """Return the higher of two lower bounds; None is no bound."""
    bounds = [bound for bound in (one, other) if bound is not None]
    return max(bounds, default=None)


def _earliest(one: int | None, other: int | None) -> int | None:
    """Return the lower of two upper bounds; None is no bound."""
    bounds = [bound for bound in (one, other) if bound is not None]
    return min(bounds, default=None)


def _column_of(each: Filter) -> str | None:
    if isinstance(each, Not):
        return _column_of(each.child)
    path: tuple[str, ...] = getattr(each, "attribute", ())
    return path[0] if len(path) == 1 else None


def _is_decidable(each: Filter) -> bool:
    if isinstance(each, Not):
        return _is_decidable(each.child)
    return type(each) in _COMPARISONS or isinstance(each, EqualNullSafe | IsNull | IsNotNull)


def _decide(each: Filter, value: object) -> bool | None:
    """Apply a filter with SQL's three-valued logic: None is unknown."""
    if isinstance(each, Not):
        decision = _decide(each.child, value)
        return None if decision is None else not decision
    if isinstance(each, IsNull):
        return value is None
    if isinstance(each, IsNotNull):
        return value is not None
    other = getattr(each, "value", None)
    if isinstance(each, EqualNullSafe):
        return value == other
    if value is None or other is None:
        return None
    if isinstance(each, In):
        is_found = value in each.value
        return None if not is_found and None in each.value else is_found
    return _COMPARISONS[type(each)](value, other)


def _time_bounds(each: Filter) -> tuple[int | None, int | None] | None:
    """Return the bounds of the time in ns that a filter sets: from and, exclusively, to."""
    column = _column_of(each)
    if isinstance(each, IsNotNull) and column in ("timestamp", "timestamp_ns"):
        return None, None
    value = getattr(each, "value", None)
    if column == "timestamp_ns" and isinstance(value, int):
        first, step = value, 1
    elif column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        # The column has whole microseconds, so one of its values is a range of a thousand.
        first, step = (value - _EPOCH) // timedelta(microseconds=1) * 1000, 1000
    else:
        return None
    match each:
        case EqualTo():
            return first, first + step
        case GreaterThan():
            return first + step, None
        case GreaterThanOrEqual():
            return first, None
        case LessThan():
            return None, first
        case LessThanOrEqual():
            return None, first + step
        case _:
            return None
