"""Exact record offsets of a window of a segment, found in many places at once.

Records are a chain: a length leads to the next one, so a plain walk takes one step of Python per
record. Here the window is cut into lanes. In each, a place that looks like a record is guessed, and
all lanes walk in lockstep, one numpy operation for a step of all of them:

    proven --> guess 1 --> guess 2 --> guess 3
    r r r r r |r r r r r r |r r r r r |r r r ... stop

A guess proves nothing, since bodies may contain records. The first lane starts at a true record. A
lane is believed when a believed one ends exactly at its start; where the believed chain runs past a
guess, it is walked on in Python until it meets the start of another lane. So the result is that of
the plain walk for any bytes; bad guesses only cost time.
"""

import numpy as np
import numpy.typing as npt

from diskqueue.envelope import HEADER_BYTES
from diskqueue.segment import PREFIX, PREFIX_BYTES, RecordLimits, split_records

Offsets = npt.NDArray[np.int64]

_MIN_STRIDE = PREFIX_BYTES + HEADER_BYTES
# Below this size, or with fewer records, the plain walk is as fast.
_MIN_WINDOW_BYTES = 256 * 1024
_MIN_RECORDS = 1024
# About so many records walk one after another in a lane; more mean fewer guesses and more steps.
_RECORDS_PER_LANE = 64
# A lane of records much smaller than the sample's is walked on in Python after that many.
_MAX_STEPS = 256
_STEPS_PER_CHECK = 4
_SAMPLE_COUNT = 16
# How many leading bytes of the first timestamp a guess must share: 2 are 3.3 days.
_TIMESTAMP_PREFIX_BYTES = 2


def find_records(data: bytearray, stop: int, limits: RecordLimits) -> tuple[Offsets, int]:
    """Find the starts of the whole records from the beginning of `data`, and the end of the last.

    Stops at the first record that is cut off by `stop` or whose length is outside the limits, as
    `diskqueue.segment.split_records` does.
    """
    if stop >= _MIN_WINDOW_BYTES:
        _, sample = split_records(data, 0, stop, _SAMPLE_COUNT, limits)
        if len(sample) == _SAMPLE_COUNT:
            mean_bytes = sample[-1] // _SAMPLE_COUNT
            if stop // mean_bytes >= _MIN_RECORDS:
                return _Lanes(data, stop, limits, mean_bytes * _RECORDS_PER_LANE).result()
    starts, ends = split_records(data, 0, stop, stop, limits)
    return np.array(starts, np.int64) - PREFIX_BYTES, ends[-1] if ends else 0


class _Lanes:
    """One window: its lanes, how far each got, and which of them are proven."""

    def __init__(self, data: bytearray, stop: int, limits: RecordLimits, lane_bytes: int) -> None:
        self._data = data
        self._stop = stop
        self._limits = limits
        # The first bytes of the timestamps: text in a body does not contain them by chance.
        self._look = bytes(data[PREFIX_BYTES : PREFIX_BYTES + _TIMESTAMP_PREFIX_BYTES])
        self._starts = self._guess_starts(lane_bytes)

    def result(self) -> tuple[Offsets, int]:
        steps = self._walk_all()
        is_record = self._judge(steps)
        counts = np.count_nonzero(is_record, axis=0)
        # Where each lane ended: behind its last whole record.
        ends = steps[counts, np.arange(len(counts))]
        # Lane by lane, so the offsets come out in order.
        if np.array_equal(ends[:-1], self._starts[1:]):
            return steps[:-1].T[is_record.T], int(ends[-1])
        is_proven, extra, end = self._prove(ends)
        offsets = steps[:-1].T[(is_record & is_proven).T]
        offsets = np.concatenate([offsets, np.array(extra, np.int64)])
        offsets.sort()
        return offsets, end

    def _guess_starts(self, lane_bytes: int) -> Offsets:
        """Return the true first record, and a guess behind each boundary between lanes."""
        starts = [0]
        for boundary in range(lane_bytes, self._stop - lane_bytes, lane_bytes):
            guess = self._guess_start(boundary, boundary + lane_bytes)
            if guess > starts[-1]:
                starts.append(guess)
        return np.array(starts, np.int64)

    def _guess_start(self, begin: int, end: int) -> int:
        """Find the first place with the timestamp of a record, followed by another; else -1."""
        data, look = self._data, self._look
        found = data.find(look, begin + PREFIX_BYTES, end)
        while found >= 0:
            (length,) = PREFIX.unpack_from(data, found - PREFIX_BYTES)
            following = found + length + PREFIX_BYTES
            if HEADER_BYTES <= length <= self._limits.max_record_bytes and (
                following + _MIN_STRIDE > self._stop or data.startswith(look, following)
            ):
                return found - PREFIX_BYTES
            found = data.find(look, found + 1, end)
        return -1

    def _walk_all(self) -> Offsets:
        """Move all lanes, a record at a time, until each has reached the next one's start.

        Returns the position of every lane (columns) after every step (rows). Nothing is checked on
        the way, as each operation counts here: a lane that left the chain or passed its goal goes
        on somewhere, never backwards because lengths are taken as unsigned.
        """
        last = self._stop - PREFIX_BYTES
        lengths = np.ndarray((last + 1,), np.uint32, self._data, 0, (1,))
        goal = self._goals()
        steps = np.empty((_MAX_STEPS + 1, len(goal)), np.int64)
        steps[0] = self._starts
        readable = np.empty(len(goal), np.int64)
        for step in range(_MAX_STEPS):
            np.minimum(steps[step], last, out=readable)
            length = lengths[readable]
            length.byteswap(inplace=True)
            following = steps[step + 1]
            np.add(steps[step], length, out=following)
            following += PREFIX_BYTES
            if step % _STEPS_PER_CHECK == 0 and (following >= goal).all():
                return steps[: step + 2]
        return steps

    def _judge(self, steps: Offsets) -> npt.NDArray[np.bool_]:
        """Tell which steps started at a whole record before the goal, with no gap before it."""
        length = np.diff(steps, axis=0)
        length -= PREFIX_BYTES
        is_record = steps[:-1] < self._goals()
        is_broken = (length < self._limits.min_record_bytes) | (
            length > self._limits.max_record_bytes
        )
        is_broken |= steps[1:] > self._stop
        is_broken &= is_record
        if is_broken.any():
            is_record &= ~np.logical_or.accumulate(is_broken, axis=0)
        return is_record

    def _goals(self) -> Offsets:
        """Return where each lane may end: at the next; the last where no length can be read."""
        return np.append(self._starts[1:], self._stop - PREFIX_BYTES + 1)

    def _prove(self, ends: Offsets) -> tuple[npt.NDArray[np.bool_], list[int], int]:
        """Find the lanes of the chain, the records between them, and the chain's end."""
        lane_at = {int(start): lane for lane, start in enumerate(self._starts)}
        is_proven = np.zeros(len(self._starts), bool)
        extra: list[int] = []
        lane: int | None = 0
        position = 0
        while True:
            if lane is not None:
                is_proven[lane] = True
                position = int(ends[lane])
            else:
                extra.append(position)
                (length,) = PREFIX.unpack_from(self._data, position)
                position += PREFIX_BYTES + length
            if not self._is_whole(position):
                return is_proven, extra, position
            lane = lane_at.get(position)

    def _is_whole(self, position: int) -> bool:
        """Tell whether a whole record of a valid length stands here."""
        if position + PREFIX_BYTES > self._stop:
            return False
        (length,) = PREFIX.unpack_from(self._data, position)
        limits = self._limits
        is_valid: bool = limits.min_record_bytes <= length <= limits.max_record_bytes
        return is_valid and position + PREFIX_BYTES + length <= self._stop
