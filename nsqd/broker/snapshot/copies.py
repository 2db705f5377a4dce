"""Copies of a channel's messages in memory, complete some turns after the moment that they show.

To copy a million messages at once would hold the loop up for 20 ms and more. So a copy is begun at
its moment and completed in steps, and whatever is about to change before it was copied is copied
first: the messages of one consumer, or those that are due at one time. Messages are never copied,
only references to them.
"""

from collections.abc import Iterator, Sequence

from nsqd.broker.in_flight import Entry, InFlight
from nsqd.broker.queue.batch import Message

# How many due times are noted in one step: 0.2 ms.
_DUES_PER_STEP = 512
# How many messages one group has at most.
MAX_GROUP_COUNT = 512


class InFlightCopy:
    """The messages in flight of one channel at one moment, each consumer's copied at a time."""

    __slots__ = ("_left", "_told")

    def __init__(self, in_flights: list[InFlight]) -> None:
        """Args: in_flights: of the consumers that have any."""
        self._left = in_flights
        self._told: list[tuple[list[bytes], list[Entry]]] = []
        for in_flight in in_flights:
            assert in_flight.on_change is None, "one copy at a time"
            in_flight.on_change = self._note

    def _note(self, ids: list[bytes], entries: list[Entry]) -> None:
        self._told.append((ids, entries))

    def step(self) -> bool:
        """Copy the messages of one more consumer; return whether there are others."""
        if self._left:
            self._left.pop().tell()
        return bool(self._left)

    def iter_groups(self) -> Iterator[tuple[Sequence[bytes], Sequence[Entry]]]:
        """Give ids and entries, some at a time, and forget them; the copy is complete."""
        while self._told:
            ids, entries = self._told.pop()
            while ids:
                yield ids[-MAX_GROUP_COUNT:], entries[-MAX_GROUP_COUNT:]
                del ids[-MAX_GROUP_COUNT:], entries[-MAX_GROUP_COUNT:]

    def end(self) -> None:
        """Ask no consumer any more."""
        for in_flight in self._left:
            in_flight.on_change = None
        self._left = []


class DeferredCopy:
    """The deferred messages of one channel at one moment: runs with one due time each."""

    __slots__ = (
        "_current",
        "_dues",
        "_first",
        "_is_complete",
        "_is_owner",
        "_left_count",
        "_noted",
        "_runs",
    )

    def __init__(
        self, dues: list[float], runs: dict[float, list[Message]], left_count: int
    ) -> None:
        """Args:
        dues: the due times of the runs, the earliest first.
        runs: those of the channel, which go on changing.
        left_count: how many messages of the first run have left already.
        """
        self._dues = dues
        self._first = dues[0] if dues else 0.0
        self._left_count = left_count
        self._runs = runs
        # Whether the channel has let go of the runs.
        self._is_owner = False
        self._is_complete = False
        # The run that is being given out.
        self._current: list[Message] | None = None
        # A run and the part of it that was there at the moment; None if it has come since.
        self._noted: dict[float, tuple[list[Message], int, int] | None] = {}

    def note(self, due: float) -> None:
        """Copy a run, unless that is done: it is about to change, or to be made."""
        if self._is_complete or due in self._noted:
            return
        run = self._runs.get(due)
        if run is None:
            self._noted[due] = None
        else:
            start = self._left_count if due == self._first else 0
            self._noted[due] = (run, start, len(run))

    def has(self, due: float, run: list[Message]) -> bool:
        """Return whether a run that leaves the channel is needed here."""
        if run is self._current:
            return True
        noted = self._noted.get(due)
        return noted is not None and noted[0] is run

    def adopt(self) -> None:
        """Own all runs from now on: the channel is being emptied."""
        self._is_owner = True

    def step(self) -> bool:
        """Note some more runs; return whether there are others."""
        for due in self._dues[-_DUES_PER_STEP:]:
            self.note(due)
        del self._dues[-_DUES_PER_STEP:]
        self._is_complete = not self._dues
        return not self._is_complete

    def iter_groups(self) -> Iterator[tuple[float, list[Message]]]:
        """Give due times and messages, some at a time, and forget them; the copy is complete."""
        while self._noted:
            due, noted = self._noted.popitem()
            if noted is None:
                continue
            run, start, stop = noted
            self._current = run
            is_live = not self._is_owner and self._runs.get(due) is run
            while stop > start:
                begin = max(start, stop - MAX_GROUP_COUNT)
                yield due, run[begin:stop]
                if not is_live:
                    del run[begin:]
                stop = begin
            self._current = None

    def let_go(self) -> list[dict[float, list[Message]]]:
        """Return the containers to dispose of, at the end."""
        return [self._runs] if self._is_owner else []
