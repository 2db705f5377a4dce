"""History: an hour of figures in bounded memory. Pure: it is told the time, and does no I/O.

Each track (of a channel, a topic, a node, the cluster) has a ring of ten minutes with a point for
every 5 s, and one of an hour with a point for every 30 s, as float32 side by side:

    slot 0: depth in out ...   slot 1: depth in out ...     NaN is a gap

All tracks use the same slots: that of a time is time // 5 % 120. A track whose figures never
changed has no ring, but the one tuple that it repeats, and since when.
"""

import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FINE_STEP_S: Final = 5
COARSE_STEP_S: Final = 30
SLOTS: Final = 120  # of each ring
_FINE_PER_COARSE: Final = COARSE_STEP_S // FINE_STEP_S
# Rounds may be slower than the steps of the ring: a figure stands for this many of them at most.
_MAX_FILL: Final = 12
_BYTES_PER_POINT: Final = 4
_NAN: Final = math.nan
# Bytes of a track without a ring, about.
_FLAT_BYTES: Final = 200

Name = TypeVar("Name", bound=Hashable)
Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A kind of history that can be asked for."""

    step_s: int
    is_fine: bool


RANGES: Final[Mapping[str, Range]] = {
    "10m": Range(FINE_STEP_S, is_fine=True),
    "1h": Range(COARSE_STEP_S, is_fine=False),
}


class _Track:
    """The history of one queue, node or cluster."""

    __slots__ = ("changed_slot", "first_slot", "flat", "last_slot", "points")

    def __init__(self, slot: int, values: Values) -> None:
        self.first_slot = slot
        self.last_slot = slot
        # When the figures were last different from those before.
        self.changed_slot = slot
        self.flat = values
        # Both rings, the fine one first; None while `flat` is all there is to say.
        self.points: array[float] | None = None

    @property
    def size_bytes(self) -> int:
        points = 0 if self.points is None else len(self.points)
        return _FLAT_BYTES + _BYTES_PER_POINT * points


class History(Generic[Name]):
    """Tracks by name, each with the same number of series."""

    def __init__(self, series: Iterable[str]) -> None:
        self.series = tuple(series)
        self._width = len(self.series)
        self._tracks: dict[Name, _Track] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._tracks)

    def add(self, name: Name, time_s: float, values: Values) -> None:
        """Note the figures of a moment; None is a gap."""
        slot = int(time_s // FINE_STEP_S)
        track = self._tracks.get(name)
        if track is None:
            self._tracks[name] = _Track(slot, values)
            self.size_bytes += _FLAT_BYTES
            return
        if slot <= track.last_slot - SLOTS:
            return  # The clock was set back by more than the ring: wait until it is there again.
        if track.points is None:
            if values == track.flat and slot - track.last_slot <= _MAX_FILL:
                track.last_slot = max(slot, track.last_slot)
                return
            self._unfold(track)
        self._write(track, slot, values)

    def forget(self, name: Name) -> None:
        """Drop a track."""
        track = self._tracks.pop(name, None)
        if track is not None:
            self.size_bytes -= track.size_bytes

    def keep_only(self, names: Mapping[Name, object], before_s: float) -> None:
        """Drop the tracks of other names that ended before a time."""
        slot = int(before_s // FINE_STEP_S)
        for name in [
            name
            for name, track in self._tracks.items()
            if name not in names and track.last_slot < slot
        ]:
            self.forget(name)

    def fold(self) -> None:
        """Give up the rings of tracks that have not changed for an hour."""
        for track in self._tracks.values():
            if track.points is not None and track.last_slot - track.changed_slot > SLOTS * (
                _FINE_PER_COARSE
            ):
                self.size_bytes -= track.size_bytes
                track.flat = self._values_at(track, track.last_slot)
                track.first_slot = track.changed_slot
                track.points = None
                self.size_bytes += track.size_bytes

    def idlest(self) -> Iterator[tuple[int, Name]]:
        """Give the tracks with rings and when each changed, the one idle for longest first."""
        ranked = sorted(
            ((track.changed_slot, name) for name, track in self._tracks.items() if track.points),
            key=lambda pair: pair[0],
        )
        yield from ranked

    def read(
        self, name: Name, range_name: str, now_s: float
    ) -> tuple[list[int], list[list[float | None]]]:
        """Return the times of the points and the figures of each series, oldest first."""
        track = self._tracks.get(name)
        chosen = RANGES[range_name]
        if track is None:
            return [], [[] for _ in self.series]
        per_step = chosen.step_s // FINE_STEP_S
        now_slot = int(now_s // FINE_STEP_S)
        # The step that is under way has no point yet, and the next round is expected soon.
        if 0 <= now_slot - track.last_slot <= _MAX_FILL:
            now_slot = track.last_slot
        # Of the coarse ring only steps that are over have a point.
        end = now_slot // per_step + (1 if chosen.is_fine else 0)
        steps = range(end - SLOTS, end)
        rows = [self._read_step(track, step, per_step) for step in steps]
        times = [step * chosen.step_s for step in steps]
        first = next((index for index, row in enumerate(rows) if row is not None), len(rows))
        empty: Values = (None,) * self._width
        columns = [[(row or empty)[index] for row in rows[first:]] for index in range(self._width)]
        return times[first:], columns

    def _read_step(self, track: _Track, step: int, per_step: int) -> Values | None:
        """Return the figures of a step, None if the track knows none."""
        slot = step * per_step
        if slot + per_step <= track.first_slot or slot > track.last_slot:
            return None
        if track.points is None:
            return track.flat
        base = 0 if per_step == 1 else SLOTS
        if per_step == 1 and slot <= track.last_slot - SLOTS:
            return None
        start = (base + step % SLOTS) * self._width
        values = track.points[start : start + self._width]
        if all(map(math.isnan, values)):
            return None
        return tuple(None if math.isnan(value) else value for value in values)

    def _unfold(self, track: _Track) -> None:
        """Give a track its rings, filled with the value that it has repeated so far."""
        points = array("f", [_NAN]) * (2 * SLOTS * self._width)
        flat = array("f", [_NAN if value is None else value for value in track.flat])
        width = self._width
        for slot in range(max(track.first_slot, track.last_slot - SLOTS + 1), track.last_slot + 1):
            start = slot % SLOTS * width
            points[start : start + width] = flat
        first = track.first_slot // _FINE_PER_COARSE
        last = track.last_slot // _FINE_PER_COARSE
        for step in range(max(first, last - SLOTS + 1), last):
            start = (SLOTS + step % SLOTS) * width
            points[start : start + width] = flat
        self.size_bytes -= track.size_bytes
        track.points = points
        self.size_bytes += track.size_bytes

    def _write(self, track: _Track, slot: int, values: Values) -> None:
        points = track.points
        assert points is not None
        width = self._width
        new = array("f", [_NAN if value is None else value for value in values])
        start = track.last_slot % SLOTS * width
        # As bytes, because a gap is not equal to itself.
        if points[start : start + width].tobytes() != new.tobytes():
            track.changed_slot = slot
        gap = array("f", [_NAN]) * width
        # A slow round stands for the steps since the one before; after a longer silence is a gap.
        is_filled = slot - track.last_slot <= _MAX_FILL
        if slot - track.last_slot >= SLOTS:
            self._forget_fine(track, slot)
        for each in range(max(track.last_slot + 1, slot - SLOTS + 1), slot + 1):
            if each % _FINE_PER_COARSE == 0:
                self._sum_up(track, each // _FINE_PER_COARSE - 1)
            start = each % SLOTS * width
            points[start : start + width] = new if is_filled or each == slot else gap
        if slot <= track.last_slot:
            start = slot % SLOTS * width
            points[start : start + width] = new
        track.last_slot = max(slot, track.last_slot)

    def _sum_up(self, track: _Track, step: int) -> None:
        """Write the point of a coarse step that is over: the mean of its fine ones."""
        points = track.points
        assert points is not None
        width = self._width
        first = step * _FINE_PER_COARSE
        rows = [
            points[slot % SLOTS * width : (slot % SLOTS + 1) * width]
            for slot in range(first, first + _FINE_PER_COARSE)
            if slot >= track.first_slot
        ]
        for index in range(width):
            known = [row[index] for row in rows if not math.isnan(row[index])]
            points[(SLOTS + step % SLOTS) * width + index] = (
                sum(known) / len(known) if known else _NAN
            )

    def _forget_fine(self, track: _Track, slot: int) -> None:
        """Make a gap of all fine steps, and of the coarse ones until a slot."""
        assert track.points is not None
        first, end = track.last_slot // _FINE_PER_COARSE, slot // _FINE_PER_COARSE
        self._sum_up(track, first)
        gap = array("f", [_NAN]) * self._width
        track.points[: SLOTS * self._width] = gap * SLOTS
        for step in range(max(first + 1, end - SLOTS), end):
            start = (SLOTS + step % SLOTS) * self._width
            track.points[start : start + self._width] = gap

    def _values_at(self, track: _Track, slot: int) -> Values:
        assert track.points is not None
        start = slot % SLOTS * self._width
        values = track.points[start : start + self._width]
        return tuple(None if math.isnan(value) else value for value in values)


def shrink(histories: Iterable["History[Name]"], max_bytes: int) -> int:
    """Drop tracks until all histories together fit; return how many were dropped.

    The tracks that have not changed for longest go first; those without a ring take next to
    nothing, and go only if that does not suffice.
    """
    every = list(histories)
    excess = sum(history.size_bytes for history in every) - max_bytes
    if excess <= 0:
        return 0
    ranked = sorted(
        ((slot, number, name) for number, each in enumerate(every) for slot, name in each.idlest()),
        key=lambda item: item[0],
    )
    dropped = 0
    for _, number, name in ranked:
        if excess <= 0:
            break
        before = every[number].size_bytes
        every[number].forget(name)
        excess -= before - every[number].size_bytes
        dropped += 1
    return dropped
