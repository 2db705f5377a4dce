"""Random damage to the files of a queue, and what must be left of it: one round for each seed.

A round writes a queue as nsqd does, closes or abandons it, damages its segments or its checksum
files in any place, starts it again and takes everything out. Then no message may have another
content than it was published with, and each whose bytes are still somewhere in a segment must have
come.
"""

import contextlib
import io
import itertools
import logging
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from diskqueue import DiskQueue, envelope
from diskqueue.__main__ import main as diskqueue_main

NAME = "topic:channel"
NOW_NS = 1_790_000_000 * 10**9
_MAX_MESSAGE_BYTES = 2000
_SECTOR_BYTES = 512
_BLOCKS = (1, 16, 512, 4096)

_quiet = logging.getLogger("tests.disk_damage")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())


@dataclass(slots=True)
class Outcome:
    """The result of a round."""

    seed: int
    what: str = ""
    message_count: int = 0
    held_count: int = 0  # those that the medium still held
    delivered_count: int = 0
    refused_count: int = 0  # taken for torn writes
    is_changed: bool = False
    is_found: bool = False  # by `check`
    problems: list[str] = field(default_factory=list)


def play(directory: Path, seed: int) -> Outcome:
    """Play a round; the directory is empty before, and gone afterwards."""
    chance = random.Random(seed)
    outcome = Outcome(seed)
    directory.mkdir(parents=True)
    try:
        payloads = _write_queue(directory, chance)
        outcome.message_count = len(payloads)
        before = _contents(directory)
        outcome.what = _damage(directory, chance)
        outcome.is_changed = _contents(directory) != before
        held = _find_held(payloads, before, _contents(directory))
        outcome.held_count = len(held)
        code, text = _check(directory)
        # A queue without any checksum file may be one of go-diskqueue's.
        outcome.is_found = code == 1 or "checksum" in text or not list(directory.glob("*.crc"))
        delivered = _drain(directory, outcome)
        outcome.delivered_count = len(delivered)
        wrong = set(delivered) - set(payloads)
        lost = held - set(delivered)
        if any(name.endswith(".crc") for name in before) and ".crc" in outcome.what:
            # Zeros, and neither a checksum nor a sync: they look like a sector that is lost.
            refused = {payload for payload in lost if _fills_no_sector(payload, before)}
            outcome.refused_count = len(refused)
            lost -= refused
        if wrong:
            outcome.problems.append(f"{len(wrong)} wrong messages")
        if lost:
            outcome.problems.append(f"{len(lost)} lost messages of {len(held)}")
        if outcome.is_changed and not outcome.is_found:
            outcome.problems.append("not found by check")
    finally:
        shutil.rmtree(directory)
    return outcome


def _open(directory: Path, max_bytes_per_file: int = 20_000) -> DiskQueue:
    return DiskQueue(
        directory,
        NAME,
        max_bytes_per_file=max_bytes_per_file,
        max_record_bytes=2**20,
        max_append_bytes=2**31 - 1,
        holds_messages=True,
        has_checksums=True,
        logger=_quiet,
    )


def _write_queue(directory: Path, chance: random.Random) -> list[bytes]:
    """Write a queue; return the payloads of its records."""
    queue = _open(directory, chance.choice((4000, 20_000, 200_000)))
    payloads: list[bytes] = []
    number = 0
    for _ in range(chance.randint(1, 40)):
        records: list[bytes] = []
        for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
            body = _make_body(chance, number)
            message_id = b"%016x" % (0x189C9E7352E69000 + number)
            records.append(envelope.encode(NOW_NS + number, 0, message_id, body))
            number += 1
        queue.put(records)
        payloads += records
        if chance.random() < 0.1:
            queue.sync()
    way = chance.random()
    if way < 0.5:
        queue.close()
    elif way < 0.7:
        queue.sync()
    # Else it is abandoned, as by a kill. Its descriptors are closed with it.
    if way >= 0.5:
        _abandon(directory, queue)
    return payloads


def _abandon(directory: Path, queue: DiskQueue) -> None:
    """Close the files of a queue and leave the directory as it was before."""
    aside = directory.with_name(f"{directory.name}.aside")
    shutil.copytree(directory, aside)
    queue.close()
    shutil.rmtree(directory)
    aside.rename(directory)


def _make_body(chance: random.Random, number: int) -> bytes:
    size = chance.choice((0, 3, 40, 200, 200, 200, 226, chance.randint(0, _MAX_MESSAGE_BYTES)))
    text = b"%d " % number
    kind = chance.random()
    if kind < 0.5:
        return (text * (size // len(text) + 1))[:size]
    if kind < 0.9:
        return chance.randbytes(size)
    return struct.pack(">I", number) + bytes(size)


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _find_held(
    payloads: list[bytes], before: dict[str, bytes], after: dict[str, bytes]
) -> set[bytes]:
    """Return the payloads that are still at their place, or elsewhere with their length."""
    names = [name for name in before if name.endswith(".dat") and "meta" not in name]
    held: set[bytes] = set()
    taken: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    elsewhere: list[tuple[bytes, str, int]] = []
    for payload in payloads:
        name = next(name for name in names if payload in before[name])
        start = before[name].index(payload)
        if after[name][start : start + len(payload)] == payload:
            held.add(payload)
            taken[name].append((start - 4, start + len(payload)))
            continue
        moved = after[name].find(struct.pack(">i", len(payload)) + payload)
        if moved >= 0:
            elsewhere.append((payload, name, moved))
    for payload, name, start in elsewhere:
        # Not if it shares bytes with another.
        end = start + 4 + len(payload)
        if all(end <= first or start >= last for first, last in taken[name]):
            held.add(payload)
            taken[name].append((start, end))
    return held


def _fills_no_sector(payload: bytes, contents: dict[str, bytes]) -> bool:
    """Whether all that a payload has in one of its sectors is zeros."""
    start = next(content.index(payload) for content in contents.values() if payload in content)
    end = start + len(payload)
    bounds = [start, *range(start - start % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES), end]
    return any(
        not any(payload[first - start : stop - start]) for first, stop in itertools.pairwise(bounds)
    )


# --- damage


def _damage(directory: Path, chance: random.Random) -> str:
    segments = sorted(path for path in directory.glob("*.dat") if "meta" not in path.name)
    checksums = sorted(directory.glob("*.crc"))
    is_segment = chance.random() < 0.6
    paths = [path for path in (segments if is_segment else checksums) if path.stat().st_size]
    told: list[str] = []
    for path in chance.sample(paths, min(len(paths), chance.choice((1, 1, 1, 2, 3)))):
        name = chance.choice(list(_KINDS))
        content = bytearray(path.read_bytes())
        _KINDS[name](content, chance)
        path.write_bytes(content)
        told.append(f"{name} {path.name}")
    if not is_segment and chance.random() < 0.15:
        told.append(_damage_whole_files(paths, chance))
    return ", ".join(told)


def _damage_whole_files(paths: list[Path], chance: random.Random) -> str:
    one, other = chance.choice(paths), chance.choice(paths)
    if one is other or not one.exists() or not other.exists():
        one.unlink(missing_ok=True)
        return f"removed {one.name}"
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"swapped {one.name} with {other.name}"


def _find_block(content: bytearray, chance: random.Random) -> tuple[int, int]:
    size = chance.choice(_BLOCKS)
    if chance.random() < 0.5:
        start = chance.randrange(len(content)) // size * size
    else:
        start = chance.randrange(len(content))
    return start, min(start + size, len(content))


def _flip_bit(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _flip_byte(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= chance.randint(1, 255)


def _zero(content: bytearray, chance: random.Random) -> None:
    start, end = _find_block(content, chance)
    content[start:end] = bytes(end - start)


def _noise(content: bytearray, chance: random.Random) -> None:
    start, end = _find_block(content, chance)
    content[start:end] = chance.randbytes(end - start)


def _tear(content: bytearray, chance: random.Random) -> None:
    """Zeros from a sector on, with the length as it was."""
    start = chance.randrange(len(content)) // 512 * 512
    content[start:] = bytes(len(content) - start)


def _swap(content: bytearray, chance: random.Random) -> None:
    start, end = _find_block(content, chance)
    other = chance.randrange(len(content) - (end - start) + 1)
    if abs(other - start) < end - start:
        return
    block, moved = content[start:end], content[other : other + end - start]
    content[start:end] = moved
    content[other : other + end - start] = block


def _duplicate(content: bytearray, chance: random.Random) -> None:
    """A block is written to another place too."""
    start, end = _find_block(content, chance)
    other = chance.randrange(len(content) - (end - start) + 1)
    content[other : other + end - start] = content[start:end]


def _insert(content: bytearray, chance: random.Random) -> None:
    """A block comes twice, and all that follows stands behind its place."""
    start, end = _find_block(content, chance)
    content[end:end] = content[start:end]


def _remove(content: bytearray, chance: random.Random) -> None:
    start, end = _find_block(content, chance)
    del content[start:end]


def _truncate(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


_KINDS: dict[str, Callable[[bytearray, random.Random], None]] = {
    "flip_bit": _flip_bit,
    "flip_byte": _flip_byte,
    "zero": _zero,
    "noise": _noise,
    "tear": _tear,
    "swap": _swap,
    "duplicate": _duplicate,
    "insert": _insert,
    "remove": _remove,
    "truncate": _truncate,
}


# --- what is left


def _check(directory: Path) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = diskqueue_main(["check", str(directory)])
    return code, output.getvalue()


def _drain(directory: Path, outcome: Outcome) -> list[bytes]:
    delivered: list[bytes] = []
    queue = _open(directory)
    while (records := queue.read(100, 50_000)) is not None:
        delivered += records
        queue.commit(range(records.first, records.first + len(records)))
    queue.put([envelope.encode(NOW_NS, 0, b"f" * 16, b"goes on")])
    last = queue.read(1, 1000)
    if last is None or not next(iter(last)).endswith(b"goes on"):
        outcome.problems.append("does not go on")
    queue.close()
    return delivered
