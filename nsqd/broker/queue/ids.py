"""Message ids: NSQ's 64-bit layout as 16 hex digits, handed out in blocks.

    | 42 bits: time tick (2**20 ns) since the epoch below | 10 bits: node id | 12 bits: sequence |

The first 13 digits change once per tick, the last three are the sequence, so a block of ids is a
prefix and a range: publishing 200 messages costs one reservation, not 200 ids.
"""

# nsqd counts ticks of 1.048576 ms from this tick on.
EPOCH_TICK = 1288834974288
TICK_SHIFT = 20
SEQUENCE_COUNT = 4096

SUFFIXES: list[bytes] = [b"%03x" % sequence for sequence in range(SEQUENCE_COUNT)]


class MessageIdFactory:
    """Hands out blocks of ids that never repeat and always grow.

    One factory serves all topics, so ids are unique on the node (the Go daemon's are per topic).
    When the clock stands still or steps back, or a tick is used up, the next tick is borrowed:
    publishing never waits for the clock.
    """

    __slots__ = ("_node_id", "_prefix", "_sequence", "_tick")

    def __init__(self, node_id: int, *, floor_ns: int = 0) -> None:
        """Args: floor_ns: wall-clock time; no id lies before it, as an earlier run may have."""
        self._node_id = node_id
        # A clock before the epoch (1970, on a machine that has lost it) would give negative ticks.
        self._tick = max((floor_ns >> TICK_SHIFT) - EPOCH_TICK, 0)
        self._sequence = SEQUENCE_COUNT
        self._prefix = b""

    @property
    def latest_ns(self) -> int:
        """The wall-clock time that no id up to now lies behind."""
        return (self._tick + 1 + EPOCH_TICK) << TICK_SHIFT

    def reserve(self, count: int, now_ns: int) -> tuple[bytes, int]:
        """Reserve up to 4096 consecutive ids: return their common prefix and first sequence."""
        tick = (now_ns >> TICK_SHIFT) - EPOCH_TICK
        if tick <= self._tick:
            first = self._sequence
            if first + count <= SEQUENCE_COUNT:
                self._sequence = first + count
                return self._prefix, first
            tick = self._tick + 1
        self._tick = tick
        self._sequence = count
        self._prefix = b"%013x" % (tick << 10 | self._node_id)
        return self._prefix, 0
