"""StallWatch: finds out what holds up the event loop, by looking at it from a thread.

The loop beats at half the threshold; when a beat is late by the threshold, the loop is in the
middle of something, and its stack says of what. It costs nothing between beats.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections import Counter

MIN_THRESHOLD_S = 0.001
MAX_STACKS = 200


class StallWatch:
    """Counts the stacks in which the loop stood still for longer than a threshold."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threshold_s: float) -> None:
        """Watch the loop of this thread, from now on until `close`."""
        self._loop = loop
        self._threshold_s = max(threshold_s, MIN_THRESHOLD_S)
        self._thread_id = threading.get_ident()
        self._beat_at = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)
        self._timer = loop.call_later(self._threshold_s / 2, self._beat)
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        self._is_over.set()
        self._thread.join()

    def describe(self) -> str:
        """Return the stacks, the most frequent first."""
        lines = [f"stalls of the event loop of {self._threshold_s * 1e3:g}ms or more\n"]
        for stack, count in self._counts.most_common():
            lines.append(f"\n{count} times\n{stack}")
        return "".join(lines)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._timer = self._loop.call_later(self._threshold_s / 2, self._beat)

    def _watch(self) -> None:
        seen_beat = 0.0
        while not self._is_over.wait(self._threshold_s / 2):
            beat_at = self._beat_at
            is_late = time.monotonic() - beat_at >= 1.5 * self._threshold_s
            # One stall is counted once, however long it is.
            if is_late and beat_at != seen_beat:
                seen_beat = beat_at
                self._note()

    def _note(self) -> None:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - there is no other way
        if frame is None:
            return
        stack = "".join(traceback.format_stack(frame))
        if stack in self._counts or len(self._counts) < MAX_STACKS:
            self._counts[stack] += 1
