from array import array
from collections.abc import Sequence

from diskqueue.envelope import RecordParts

def join_records(parts: list[RecordParts]) -> tuple[bytes, array[int]]: ...
def encode(seed: int, start: int, data: bytes | memoryview, lengths: Sequence[int]) -> bytes: ...
