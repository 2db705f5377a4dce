"""RecordTally: how many records a segment has, and from when, counted as its bytes go by."""

import struct

# The size of a record, and the time of its message.
_START = struct.Struct(">iq")


class RecordTally:
    """The records of the bytes that were fed, in pieces of any size.

    Bytes that cannot be a record end the count; the bytes are copied as they are, and readers tell.
    """

    def __init__(self) -> None:
        self.message_count = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.is_damaged = False
        # Bytes of a record's start that the last piece ended with, and those still to be skipped.
        self._rest = b""
        self._skip_bytes = 0

    def feed(self, data: bytes) -> None:
        """Count the records that start in this piece."""
        if self.is_damaged:
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position, size = self._skip_bytes, len(data)
        while position + _START.size <= size:
            length, time_ns = _START.unpack_from(data, position)
            if length < _START.size:
                self.is_damaged = True
                return
            self.message_count += 1
            if self.first_ns is None:
                self.first_ns = time_ns
            self.last_ns = time_ns
            position += 4 + length
        self._skip_bytes = max(position - size, 0)
        self._rest = data[position:] if position < size else b""
