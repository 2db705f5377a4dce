"""RDY: how many messages each connection may have in flight. Pure: values in, values out.

`share` divides max_in_flight when there is at least one for each connection. `Rotation` takes over
when there are more connections than that: RDY 1 goes round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

IDLE_S: Final = 10.0
HELD_S: Final = 30.0

Key = TypeVar("Key", bound=Hashable)


def share(total: int, caps: Sequence[int]) -> list[int]:
    """Divide a total into shares that differ by 1 at most, but for those that reach their cap.

    They add up to the total, or to the sum of the caps if that is less.
    """
    shares = [0] * len(caps)
    left_count = len(caps)
    # The lowest caps first: the rest goes to the others.
    for index in sorted(range(len(caps)), key=caps.__getitem__):
        shares[index] = min(caps[index], total // left_count)
        total -= shares[index]
        left_count -= 1
    return shares


class Rotation(Generic[Key]):
    """RDY 1 for `count` of the keys at a time, each in its turn."""

    def __init__(self) -> None:
        # All keys, the one that waits longest first; holders stand behind the waiting ones.
        self._line: deque[Key] = deque()
        # Since when each holder has RDY 1, and when it was last seen active.
        self._held: dict[Key, tuple[float, float]] = {}

    @property
    def holders(self) -> set[Key]:
        """The keys with RDY 1."""
        return set(self._held)

    def clear(self) -> None:
        """Forget all keys."""
        self._line.clear()
        self._held.clear()

    def note_activity(self, key: Key, now: float) -> None:
        """Note that a message came."""
        if key in self._held:
            self._held[key] = (self._held[key][0], now)

    def update(self, keys: Iterable[Key], count: int, now: float) -> set[Key]:
        """Take turns: return the keys that have RDY 1 from now on.

        A holder gives up after 10 s without a message, or after 30 s, if another waits.
        """
        present = dict.fromkeys(keys)
        self._held = {key: held for key, held in self._held.items() if key in present}
        known = [key for key in self._line if key in present]
        new = [key for key in present if key not in known]
        self._line = deque([*new, *known])
        waiting_count = len(present) - len(self._held)
        for key, (since, active) in list(self._held.items()):
            is_over = now - active >= IDLE_S or now - since >= HELD_S
            if len(self._held) > count or (is_over and waiting_count):
                del self._held[key]
                self._line.remove(key)
                self._line.append(key)
                if is_over:
                    waiting_count -= 1
        for key in list(self._line):
            if len(self._held) >= count:
                break
            if key not in self._held:
                self._held[key] = (now, now)
                self._line.remove(key)
                self._line.append(key)
        return set(self._held)
