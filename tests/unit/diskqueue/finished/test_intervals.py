"""Intervals against a plain set of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.finished.intervals import Interval, Intervals

NUMBERS = st.sets(st.integers(0, 40))


def members(intervals: Intervals) -> set[int]:
    """Every integer in a set of integers, whose count must be right."""
    found = {number for entry in intervals for number in range(entry.start, entry.end)}
    assert len(found) == intervals.count == intervals.width
    assert all(entry.item_count == entry.end - entry.start for entry in intervals)
    return found


@given(NUMBERS)
def test_numbers_become_the_longest_intervals(numbers: set[int]) -> None:
    intervals = Intervals.of_numbers([*numbers, *sorted(numbers, reverse=True)])

    assert members(intervals) == numbers
    assert len(intervals) == sum(number - 1 not in numbers for number in numbers)
    assert {number for number in range(-1, 42) if number in intervals} == numbers
    assert bool(intervals) is bool(numbers)
    if numbers:
        assert (intervals.start, intervals.end) == (min(numbers), max(numbers) + 1)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_union_of_numbers(first: set[int], second: set[int], third: set[int]) -> None:
    parts = [Intervals.of_numbers(part) for part in (first, second, third)]

    union = parts[0].union(*parts[1:])

    assert union == Intervals.of_numbers(first | second | third)
    assert hash(union) == hash(Intervals.of_numbers(first | second | third))


@given(NUMBERS, NUMBERS)
def test_minus(first: set[int], second: set[int]) -> None:
    assert Intervals.of_numbers(first).minus(Intervals.of_numbers(second)) == (
        Intervals.of_numbers(first - second)
    )


def test_minus_takes_no_step_per_number() -> None:
    everything = Intervals.of_span(0, 1 << 61)

    assert list(everything.minus(Intervals.of_numbers([5]))) == [
        Interval(0, 5, 5),
        Interval(6, 1 << 61, (1 << 61) - 6),
    ]


def test_empty_span() -> None:
    assert Intervals.of_span(7, 7) == Intervals.of_span(7, 3) == Intervals() == Intervals([])
    assert Intervals() != ()
    assert Intervals().count == Intervals().width == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.data())
def test_marks_become_records(sizes: list[int], data: st.DataObject) -> None:
    marks = bytes(data.draw(st.integers(0, 1)) for _ in sizes)
    bounds = [sum(sizes[:index]) for index in range(len(sizes) + 1)]

    records = Intervals.of_marks(marks, bounds)

    marked = [index for index, mark in enumerate(marks) if mark]
    assert records.count == len(marked)
    assert records.width == sum(sizes[index] for index in marked)
    assert {position for position in range(bounds[-1]) if position in records} == {
        position for index in marked for position in range(bounds[index], bounds[index + 1])
    }
    assert len(records) == marks.strip(b"\0").replace(b"\1\0", b"\1.").count(b".") + bool(marked)


RECORDS = Intervals([Interval(0, 64, 2), Interval(96, 128, 1), Interval(160, 192, 1)])


@pytest.mark.parametrize(
    ("position", "count"), [(0, 4), (1, 2), (64, 2), (96, 2), (97, 1), (160, 1), (161, 0), (999, 0)]
)
def test_since_never_cuts_an_interval(position: int, count: int) -> None:
    rest = RECORDS.since(position)

    assert rest.count == count
    assert list(rest) == [entry for entry in RECORDS if entry.start >= position]


def test_records_that_touch_become_one_interval() -> None:
    other = Intervals([Interval(64, 96, 1), Interval(192, 300, 3)])

    assert list(RECORDS.union(other)) == [Interval(0, 128, 4), Interval(160, 300, 4)]
    assert list(other.union(RECORDS)) == [Interval(0, 128, 4), Interval(160, 300, 4)]
    assert RECORDS.last == Interval(160, 192, 1)


@pytest.mark.parametrize("entry", [Interval(32, 64, 1), Interval(120, 150, 1), Interval(0, 200, 5)])
def test_records_cannot_be_in_two_sets(entry: Interval) -> None:
    with pytest.raises(ValueError, match="records overlap"):
        RECORDS.union(Intervals([entry]))


@pytest.mark.parametrize(
    "entries",
    [
        [Interval(5, 5, 1)],
        [Interval(5, 4, 1)],
        [Interval(-1, 4, 1)],
        [Interval(0, 4, 0)],
        [Interval(8, 9, 1), Interval(0, 4, 1)],
        [Interval(0, 4, 1), Interval(3, 5, 1)],
    ],
)
def test_intervals_must_ascend(entries: list[Interval]) -> None:
    with pytest.raises(ValueError, match="no interval"):
        Intervals(entries)


def test_it_shows_its_content() -> None:
    assert repr(RECORDS) == "Intervals([(0, 64, 2), (96, 128, 1), (160, 192, 1)])"
