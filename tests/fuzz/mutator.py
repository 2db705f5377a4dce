"""Mutator: turns inputs that are known into new ones, the same ones for the same seed."""

import random
import struct
from collections.abc import Sequence

_MAX_STEPS = 6
_SIZES = (0, 1, 4, 16, 25, 26, 127, 128, 255, 256, 1000, 1001, 4096, 65535, 65536, 2**31 - 1, -1)
# Numbers at which readers change their mind, as they stand in files and on the wire.
_NUMBERS = tuple(
    number
    for size in _SIZES
    for number in (struct.pack(">i", size), struct.pack("<i", size), str(size).encode())
)


class Mutator:
    """Makes new inputs of a population: flips, numbers, words, pieces of others."""

    def __init__(self, dice: random.Random, words: Sequence[bytes], max_bytes: int) -> None:
        """Args: words: what the target's format is made of."""
        self._dice = dice
        self._words = (*words, *_NUMBERS)
        self._max_bytes = max_bytes

    def mutate(self, population: Sequence[bytes]) -> bytes:
        """Return a descendant of one member, or of two."""
        dice = self._dice
        data = bytearray(dice.choice(population))
        for _ in range(dice.randint(1, _MAX_STEPS)):
            step = dice.choice(self._steps)
            step(self, data, population)
        return bytes(data[: self._max_bytes])

    def _place(self, data: bytearray) -> int:
        return self._dice.randint(0, len(data))

    def _flip(self, data: bytearray, _population: Sequence[bytes]) -> None:
        if data:
            data[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)

    def _set(self, data: bytearray, _population: Sequence[bytes]) -> None:
        if data:
            data[self._dice.randrange(len(data))] = self._dice.randrange(256)

    def _insert_word(self, data: bytearray, _population: Sequence[bytes]) -> None:
        place = self._place(data)
        data[place:place] = self._dice.choice(self._words)

    def _overwrite_with_word(self, data: bytearray, _population: Sequence[bytes]) -> None:
        place = self._place(data)
        word = self._dice.choice(self._words)
        data[place : place + len(word)] = word

    def _insert_noise(self, data: bytearray, _population: Sequence[bytes]) -> None:
        place = self._place(data)
        data[place:place] = self._dice.randbytes(self._dice.randint(1, 8))

    def _remove(self, data: bytearray, _population: Sequence[bytes]) -> None:
        place = self._place(data)
        del data[place : place + self._dice.choice((1, 1, 2, 4, 8, 32, 256))]

    def _cut_off(self, data: bytearray, _population: Sequence[bytes]) -> None:
        del data[self._place(data) :]

    def _repeat(self, data: bytearray, _population: Sequence[bytes]) -> None:
        start = self._place(data)
        piece = data[start : start + self._dice.choice((1, 4, 16, 64, 256))]
        count = self._dice.choice((1, 2, 8, 64))
        if len(data) + len(piece) * count <= self._max_bytes:
            data[start:start] = piece * count

    def _splice(self, data: bytearray, population: Sequence[bytes]) -> None:
        other = self._dice.choice(population)
        start = self._dice.randint(0, len(other))
        end = self._dice.randint(start, len(other))
        place = self._place(data)
        data[place : place + self._dice.choice((0, end - start))] = other[start:end]

    _steps = (
        *(_flip, _flip, _set, _insert_word, _insert_word, _overwrite_with_word, _insert_noise),
        *(_remove, _remove, _cut_off, _repeat, _splice, _splice),
    )
