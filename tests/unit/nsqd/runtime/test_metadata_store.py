import asyncio
import threading
from pathlib import Path

import pytest

from nsqd.broker import metadata
from nsqd.runtime import metadata_store
from nsqd.runtime.metadata_store import MetadataStore
from tests.support.broker_rig import BrokerRig


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
    store.changed()
    await is_saving.wait()

    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    is_closing.set()

    await asyncio.wait_for(closing, 5)
