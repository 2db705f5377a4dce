import gc
import weakref
from collections.abc import Iterator

import pytest

from nsqd.stats.memory import MemoryReader

KEYS = [
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
]


def test_the_nine_keys_are_integers() -> None:  # S-8
    figures = MemoryReader().read().as_dict()

    assert list(figures) == KEYS
    assert all(type(value) is int and value >= 0 for value in figures.values())
    assert figures["heap_objects"] > 1000
    assert figures["heap_in_use_bytes"] > 1024 * 1024


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Keep the collector from running by itself: the garbage of other tests is here, too."""
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_collections_are_counted_and_timed() -> None:
    reader = MemoryReader()
    before = reader.read()
    assert before.gc_pause_usec_100 == 0

    gc.collect()

    after = reader.read()
    assert after.gc_total_runs > before.gc_total_runs
    assert after.gc_pause_usec_100 >= after.gc_pause_usec_99 >= after.gc_pause_usec_95 > 0


def test_a_reader_that_is_gone_leaves_nothing_behind() -> None:
    callback_count = len(gc.callbacks)
    reader = MemoryReader()
    assert len(gc.callbacks) == callback_count + 1
    gone = weakref.ref(reader)

    del reader

    assert gone() is None
    assert len(gc.callbacks) == callback_count
