"""Intervals: an immutable sorted set of half-open integer ranges, each with a count.

The integers are offsets in a segment (the count: how many records stand between them), ordinals of
records, or numbers of segments (the count: how wide the range is). While records are being finished
one by one, `Outstanding` has a mark for each instead, and `Intervals.of_marks` turns the marks into
this value at a sync.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

_MARKED = re.compile(rb"\x01+")
_START = attrgetter("start")
_END = attrgetter("end")


class Interval(NamedTuple):
    """Things that stand one behind the other, from `start` to before `end`."""

    start: int
    end: int
    item_count: int


class Intervals:
    """Disjoint intervals in ascending order; never changes."""

    __slots__ = ("_entries", "count", "width")

    def __init__(self, entries: Iterable[Interval] = ()) -> None:
        """Take intervals that ascend.

        Raises:
            ValueError: they do not, or one of them is empty.
        """
        self._entries = tuple(entries)
        total = width = position = 0
        for start, end, count in self._entries:
            if not position <= start < end or count <= 0:
                raise ValueError(f"no interval at {position}: {start}..{end} of {count}")
            total += count
            width += end - start
            position = end
        # Of things, and of bytes or integers: added up once, since every sync asks.
        self.count = total
        self.width = width

    @classmethod
    def of_span(cls, start: int, end: int) -> "Intervals":
        """Make the set of the integers from `start` to before `end`."""
        return cls([Interval(start, end, end - start)] if start < end else ())

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> "Intervals":
        """Make a set of integers, given in any order and as often as the caller likes."""
        entries: list[Interval] = []
        for number in sorted(set(numbers)):
            if entries and entries[-1].end == number:
                start = entries[-1].start
                entries[-1] = Interval(start, number + 1, number + 1 - start)
            else:
                entries.append(Interval(number, number + 1, 1))
        return cls(entries)

    @classmethod
    def of_marks(cls, marks: bytes, bounds: Sequence[int]) -> "Intervals":
        """Make the set of the things whose mark is 1.

        Args:
            bounds: where each thing begins, and where the last one ends.
        """
        spans = [match.span() for match in _MARKED.finditer(marks)]
        return cls([Interval(bounds[first], bounds[end], end - first) for first, end in spans])

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._entries)

    def __len__(self) -> int:
        """Count the intervals, not the things in them."""
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return f"Intervals({[tuple(entry) for entry in self._entries]})"

    def __contains__(self, position: int) -> bool:
        """Tell whether an interval covers this offset, ordinal or number."""
        index = bisect_right(self._entries, position, key=_START)
        return index > 0 and position < self._entries[index - 1].end

    @property
    def start(self) -> int:
        """Where the first interval begins; there must be one."""
        return self._entries[0].start

    @property
    def end(self) -> int:
        """Where the last interval ends; there must be one."""
        return self._entries[-1].end

    @property
    def last(self) -> Interval:
        """The last interval; there must be one."""
        return self._entries[-1]

    def since(self, position: int) -> "Intervals":
        """Return those intervals that begin at a position or behind it."""
        index = bisect_left(self._entries, position, key=_START)
        return Intervals(self._entries[index:]) if index else self

    def union(self, *others: "Intervals") -> "Intervals":
        """Return the intervals of all sets, those that touch each other as one.

        Raises:
            ValueError: a record is in two of them; integers may be.
        """
        joined: list[Interval] = []
        for entry in sorted(entry for intervals in (self, *others) for entry in intervals):
            if joined and entry.start <= joined[-1].end:
                joined[-1] = _join(joined[-1], entry)
            else:
                joined.append(entry)
        return Intervals(joined)

    def minus(self, other: "Intervals") -> "Intervals":
        """Return the integers of this set that are not in the other; for sets of integers only."""
        assert self.count == self.width, "an interval of records cannot be cut"
        parts: list[Interval] = []
        cuts = list(other)
        for start, end, _ in self:
            position = start
            index = bisect_right(cuts, position, key=_END)
            while index < len(cuts) and cuts[index].start < end:
                if cuts[index].start > position:
                    stop = cuts[index].start
                    parts.append(Interval(position, stop, stop - position))
                position = cuts[index].end
                index += 1
            if position < end:
                parts.append(Interval(position, end, end - position))
        return Intervals(parts)


def _join(first: Interval, second: Interval) -> Interval:
    if first.end == second.start:
        return Interval(first.start, second.end, first.item_count + second.item_count)
    if any(entry.item_count != entry.end - entry.start for entry in (first, second)):
        raise ValueError(f"records overlap: {first} and {second}")
    end = max(first.end, second.end)
    return Interval(first.start, end, end - first.start)
