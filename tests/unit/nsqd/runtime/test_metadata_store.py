import asyncio
import threading
from pathlib import Path

import pytest

from nsqd.broker import metadata
from nsqd.runtime import metadata_store
from nsqd.runtime.metadata_store import MetadataStore
from nsqd.runtime.turns import Turns
from tests.support.broker_rig import BrokerRig
from tests.support.waiting import until


async def test_a_disk_that_fails_does_not_keep_the_store_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_saving = asyncio.Event()
    loop = asyncio.get_running_loop()
    is_closing = threading.Event()

    def fail(_data_path: Path, _text: bytes) -> None:
        loop.call_soon_threadsafe(is_saving.set)
        is_closing.wait(5)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metadata, "save", fail)
    monkeypatch.setattr(metadata_store, "RETRY_S", 0.0)
    store = MetadataStore(BrokerRig(tmp_path).broker, tmp_path)
    store.changed("t")
    await is_saving.wait()

    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    is_closing.set()

    await asyncio.wait_for(closing, 5)


def read_names(tmp_path: Path) -> list[str]:
    return [topic.name for topic in metadata.load(tmp_path)]


async def test_a_change_makes_the_text_of_its_topic_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = BrokerRig(tmp_path)
    for name in ("a", "b", "c", "d#ephemeral"):
        rig.broker.ensure_topic(name).ensure_channel("ch")
    store = MetadataStore(rig.broker, tmp_path)
    rig.broker.listeners.append(store.on_change)
    store.save()
    encoded: list[str] = []
    encode = metadata.encode_topic

    def note(topic: metadata.TopicRecord) -> bytes:
        encoded.append(topic.name)
        return encode(topic)

    monkeypatch.setattr(metadata, "encode_topic", note)

    rig.broker.topics["b"].pause()
    rig.broker.delete_topic("a")
    rig.broker.ensure_topic("e").ensure_channel("x")
    await store.persist("b")

    assert sorted(encoded) == ["b", "e"]
    assert metadata.load(tmp_path) == rig.broker.records()
    assert read_names(tmp_path) == ["b", "c", "e"]


async def test_many_changes_are_encoded_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "slice_end", lambda _turns: 0.0)
    rig = BrokerRig(tmp_path)
    store = MetadataStore(rig.broker, tmp_path)
    rig.broker.listeners.append(store.on_change)
    for number in range(20):
        rig.broker.ensure_topic(f"t{number}")
    seen: list[int] = []
    encode = metadata.encode_topic

    def note(topic: metadata.TopicRecord) -> bytes:
        seen.append(turn_count)
        if topic.name == "t9":  # a change between two slices
            rig.broker.delete_topic("t5")
            rig.broker.delete_topic("t15")
        return encode(topic)

    monkeypatch.setattr(metadata, "encode_topic", note)
    turn_count = 0
    persisting = asyncio.create_task(store.persist("t0"))
    while not persisting.done():
        turn_count += 1
        await asyncio.sleep(0)

    await store.persist("t0")
    assert len(set(seen)) > 10
    assert metadata.load(tmp_path) == rig.broker.records()


async def test_a_change_does_not_wait_for_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client may go on changing topics for ever."""
    rig = BrokerRig(tmp_path)
    store = MetadataStore(rig.broker, tmp_path)
    save_count = 0
    save = metadata.save

    def save_and_change(data_path: Path, text: bytes) -> None:
        nonlocal save_count
        save(data_path, text)
        save_count += 1
        if save_count < 100:
            loop.call_soon_threadsafe(store.changed, "other")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(metadata, "save", save_and_change)

    await store.persist("t")

    assert save_count < 100
    await store.close()


async def test_persisting_ends_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_data_path: Path, _text: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metadata, "save", fail)
    rig = BrokerRig(tmp_path)
    store = MetadataStore(rig.broker, tmp_path)
    persisting = asyncio.create_task(store.persist("t"))
    await until(lambda: not rig.broker.is_healthy)

    await store.close()

    await persisting
