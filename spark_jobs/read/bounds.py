"""Which part of a queue a batch read takes: bounds by offset, and by the times of an archive.

Offsets are positions on disk, with the identity of the queue (`offsets.py`), as a checkpoint has
them and `nsqd-spark queues --json` shows them. A queue that they do not name is read as if there
were none. A position of a queue that was made anew is an error.
"""

import json
from dataclasses import replace
from functools import lru_cache

from spark_jobs.read.files.identity import find_same
from spark_jobs.read.files.scan import SegmentLostError
from spark_jobs.read.offsets import Mark, StreamOffset, key_of
from spark_jobs.read.options import Origin, ReadOptions
from spark_jobs.read.queue import Queue, SegmentRange

# An archive has the order of publishing, but a clock may have been set back by so much without it
# showing in the first times of segments.
_CLOCK_MARGIN_NS = 600 * 10**9


def narrow(queue: Queue, options: ReadOptions) -> list[SegmentRange]:
    """Return the ranges of a queue that the options select.

    Raises:
        SegmentLostError: offsets speak of records that are gone, and failOnDataLoss is true.
        ValueError: the offsets are none.
    """
    start = _find_mark(queue, "startingOffsets", options.start_offsets, options)
    end = _find_mark(queue, "endingOffsets", options.end_offsets, options)
    if start is not None:
        options = replace(options, origin=Origin.EARLIEST)
        _check_start(queue, start, options)
    ranges = []
    for each in queue.ranges(options):
        first, last = each.start, each.end
        if start is not None:
            if each.number < start.position.segment:
                continue
            if each.number == start.position.segment:
                first = max(first, start.position.offset)
        if end is not None:
            if each.number > end.position.segment:
                continue
            if each.number == end.position.segment:
                last = min(last, end.position.offset)
        if first < last:
            ranges.append(SegmentRange(each.number, first, last))
    return _within_times(queue, ranges, options)


def _within_times(
    queue: Queue, ranges: list[SegmentRange], options: ReadOptions
) -> list[SegmentRange]:
    """Leave out segments of an archive that are older or newer as a whole."""
    if options.origin is not Origin.ARCHIVE:
        return ranges
    since_ns, until_ns = options.since_ns, options.until_ns
    kept = []
    for index, each in enumerate(ranges):
        first_ns = queue.first_ns.get(each.number)
        following = ranges[index + 1].number if index + 1 < len(ranges) else -1
        next_ns = queue.first_ns.get(following)
        # The clock was set back while it was written: it has later times than the next one begins
        # with, and earlier ones than it begins with itself.
        is_mixed = first_ns is not None and next_ns is not None and next_ns < first_ns
        is_outside = _is_reached(until_ns, first_ns) or _is_passed(since_ns, next_ns)
        if is_mixed or not is_outside:
            kept.append(each)
    return kept


def _is_reached(until_ns: int | None, first_ns: int | None) -> bool:
    if until_ns is None or first_ns is None:
        return False
    return first_ns - _CLOCK_MARGIN_NS >= until_ns


def _is_passed(since_ns: int | None, next_ns: int | None) -> bool:
    if since_ns is None or next_ns is None:
        return False
    return next_ns + _CLOCK_MARGIN_NS < since_ns


def _find_mark(queue: Queue, name: str, text: str | None, options: ReadOptions) -> Mark | None:
    if text is None:
        return None
    mark = parse_offsets(name, text).end.get(key_of(queue))
    if mark is None:
        return None
    if find_same(queue, mark.identity) is False:
        _lose(f"queue {queue.name} in {queue.directory} was made anew since {name}", options)
        return None
    return mark


def _check_start(queue: Queue, start: Mark, options: ReadOptions) -> None:
    oldest = min(queue.sizes, default=None)
    if oldest is not None and oldest > start.position.segment:
        _lose(
            f"queue {queue.name} in {queue.directory} begins with segment {oldest} now, behind"
            f" startingOffsets {start.position}",
            options,
        )


def _lose(text: str, options: ReadOptions) -> None:
    if options.fails_on_data_loss:
        raise SegmentLostError(f"{text}; set failOnDataLoss=false to read what is there")


@lru_cache(maxsize=8)
def parse_offsets(name: str, text: str) -> StreamOffset:
    """Parse offsets that were given as an option.

    Raises:
        ValueError: the text is none of `offsets.py`.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"option {name} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"option {name} is an object, as nsqd-spark queues --json shows it")
    return StreamOffset.from_json(document)
