"""The name that tells a queue from others of the same name."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue, layout
from diskqueue.sidecars import generation as module
from diskqueue.sidecars.generation import Generation
from diskqueue.sidecars.identity import make_identity, read_identity


def open_queue(path: Path, name: str = "t") -> DiskQueue:
    return DiskQueue(path, name, stores_generation=True)


def stored(path: Path, name: str = "t") -> str | None:
    return read_identity(layout.generation_path(str(path), name))


def test_first_sync_names_the_queue_for_good(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    assert stored(tmp_path) is None

    queue.put([b"x" * 30])
    queue.sync()

    name = stored(tmp_path)
    assert name is not None
    assert queue.generation.ensure() == name
    queue.put([b"y" * 30])
    queue.close()
    assert open_queue(tmp_path).generation.ensure() == name


def test_the_name_is_in_its_file_when_it_is_told(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)

    assert queue.generation.ensure() == stored(tmp_path)


def test_emptying_keeps_the_name(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    name = queue.generation.ensure()

    queue.forget_all()
    queue.sync()

    assert queue.generation.ensure() == stored(tmp_path) == name


def test_a_deleted_queue_leaves_no_name_and_the_next_has_another(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    name = queue.generation.ensure()

    queue.delete()

    assert list(tmp_path.iterdir()) == []
    assert open_queue(tmp_path).generation.ensure() != name


def test_a_queue_made_anew_before_the_old_files_are_gone_has_another_name(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    name = queue.generation.ensure()

    queue.generation.end()

    again = queue.generation.ensure()
    assert again == stored(tmp_path) != name
    assert queue.generation.ensure() == again


def test_a_name_found_while_the_queue_is_made_anew_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = Generation(str(tmp_path), "t")
    made: list[str] = []

    def make_and_end() -> str:
        made.append(make_identity())
        if len(made) == 1:
            generation.end()
        return made[-1]

    monkeypatch.setattr(module, "make_identity", make_and_end)

    assert generation.ensure() == made[1] == stored(tmp_path)


def test_a_close_writes_no_name_that_was_never_told(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])

    queue.close()

    assert stored(tmp_path) is None


def test_a_sync_succeeds_without_room_for_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, name: str) -> None:
        raise OSError(28, "No space left on device")

    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    monkeypatch.setattr(module, "write_identity", refuse)

    queue.sync()

    assert queue.unsynced_count == 0
    with pytest.raises(OSError, match="No space"):
        queue.generation.ensure()


def test_files_of_a_name_alone_are_no_segments(tmp_path: Path) -> None:
    Generation(str(tmp_path), "t").ensure()

    [files] = layout.list_queues(tmp_path).values()

    assert files.has_generation
    assert not files.has_metadata
    assert not files.segments
