"""A value is frozen: who holds one need not ask who else does. What changes is in a list here."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("diskqueue", "nsqd/api", "nsqd/broker", "nsqd/http", "nsqd/protocol", "nsqd/tcp")

# Filled in steps by the one who made it, or the state of something that goes on.
CHANGING = {
    "diskqueue.append_job.Placement",
    "diskqueue.checksums.audit.Audit",
    "diskqueue.layout.QueueFiles",
    "diskqueue.recovery.Recovered",
    "diskqueue.finished.sidecar.Evidence",
    "diskqueue.sync_job.SyncJob",
    "diskqueue.tools.check.QueueReport",
    "diskqueue.writer.FsyncTarget",
    "diskqueue.writer._Crossing",
    "nsqd.broker.archive.retention._Segment",
    "nsqd.protocol.identify._Request",
}


def find_dataclasses(module_path: Path) -> Iterator[type]:
    parts = module_path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(parts))
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from [value] if dataclasses.is_dataclass(value) else []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_dataclass_is_frozen_unless_it_is_known_to_change(package: str) -> None:
    changing = {
        f"{it.__module__}.{it.__name__}"
        for path in (ROOT / package).rglob("[!_]*.py")
        for it in find_dataclasses(path)
        if not it.__dataclass_params__.frozen  # type: ignore[attr-defined]
    }

    assert changing == {it for it in CHANGING if it.startswith(package.replace("/", "."))}
