"""Files with one random name, and the one that tells a queue from others of the same name."""

from pathlib import Path

import pytest

from diskqueue import DiskQueue, identity, layout
from diskqueue.identity import (
    Deleted,
    Generation,
    make_identity,
    parse_generation,
    read_identity,
    write_identity,
)


def test_a_name_is_read_as_it_was_written(tmp_path: Path) -> None:
    name = make_identity()

    write_identity(tmp_path / "file", name)

    assert read_identity(tmp_path / "file") == name
    assert (tmp_path / "file").read_bytes() == name.encode() + b"\n"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_names_differ() -> None:
    assert len({make_identity() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text", [b"", b"x" * 33, b"ab" * 16, b"ab" * 16 + b"\n\n", b"AB" * 16 + b"\n"]
)
def test_another_text_is_no_name(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "file").write_bytes(text)

    assert read_identity(tmp_path / "file") is None


def test_no_file_and_a_directory_are_no_name(tmp_path: Path) -> None:
    assert read_identity(tmp_path / "file") is None
    assert read_identity(tmp_path) is None


def open_queue(path: Path, name: str = "t") -> DiskQueue:
    return DiskQueue(path, name, stores_generation=True)


def stored(path: Path, name: str = "t") -> str | None:
    found = read_file(path, name)
    return None if found is None else found[0]


def read_file(path: Path, name: str = "t") -> tuple[str, Deleted | None] | None:
    file = Path(layout.generation_path(str(path), name))
    return parse_generation(file.read_bytes()) if file.exists() else None


def refuse_generation_files(monkeypatch: pytest.MonkeyPatch) -> None:
    write = layout.write_atomically

    def refuse(path: str, content: bytes) -> None:
        if path.endswith(".generation"):
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(layout, "write_atomically", refuse)


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

    monkeypatch.setattr(identity, "make_identity", make_and_end)

    assert generation.ensure() == made[1] == stored(tmp_path)


def test_a_close_writes_no_name_that_was_never_told(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])

    queue.close()

    assert stored(tmp_path) is None


def test_a_sync_succeeds_without_room_for_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    refuse_generation_files(monkeypatch)

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


def finish_all(queue: DiskQueue) -> None:
    while (records := queue.read(100, 1 << 20)) is not None:
        queue.commit(range(records.first, records.first + len(records.starts)))


def test_a_closed_queue_tells_which_segment_was_deleted_last(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30, b"y" * 30])
    queue.sync()
    assert queue.view.last_deleted is None
    finish_all(queue)

    queue.close()

    name, deleted = read_file(tmp_path) or ("", None)
    assert deleted == (0, 68)
    again = open_queue(tmp_path)
    assert again.generation.ensure() == name
    assert again.view.last_deleted == (0, 68)


def test_a_deletion_is_told_before_the_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = DiskQueue(tmp_path, "t", stores_generation=True, max_bytes_per_file=40)
    queue.put([b"x" * 30, b"y" * 30, b"z" * 30])
    queue.sync()
    seen = []
    remove = layout.remove_segment

    def look_and_remove(path: str, *, has_checksums: bool) -> None:
        seen.append(read_file(tmp_path))
        remove(path, has_checksums=has_checksums)

    monkeypatch.setattr(layout, "remove_segment", look_and_remove)
    records = queue.read(2, 1000)
    assert records is not None
    more = queue.read(2, 1000)
    assert more is not None
    queue.commit([records.first, more.first])

    queue.sync()

    name = queue.generation.ensure()
    assert seen == [(name, Deleted(1, 34))] * 2


def test_segments_that_are_emptied_are_told_at_once(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    queue.sync()

    queue.forget_all()

    assert queue.view.last_deleted == (0, 34)
    queue.sync()
    assert read_file(tmp_path) == (queue.generation.ensure(), Deleted(0, 34))


def test_a_queue_made_anew_has_deleted_nothing(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    queue.sync()
    queue.forget_all()
    queue.sync()

    queue.generation.end()

    assert queue.view.last_deleted is None
    name = queue.generation.ensure()
    assert read_file(tmp_path) == (name, None)


def test_segments_are_deleted_without_room_to_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue(tmp_path)
    queue.put([b"x" * 30])
    queue.sync()
    before = read_file(tmp_path)
    refuse_generation_files(monkeypatch)
    finish_all(queue)

    queue.close()

    assert not list(tmp_path.glob("*0.dat"))
    assert read_file(tmp_path) == before


@pytest.mark.parametrize(
    "text", [b"", b"x" * 32 + b"\n", b"a" * 33, b"a" * 32 + b"\n1,", b"a" * 32 + b"\n-1,2\n"]
)
def test_other_texts_are_no_generation(text: bytes) -> None:
    assert parse_generation(text) is None


def test_a_deletion_before_the_name_was_asked_for_keeps_the_name(tmp_path: Path) -> None:
    name = Generation(str(tmp_path), "t").ensure()

    Generation(str(tmp_path), "t").store_deleted(3, 100)

    assert read_file(tmp_path) == (name, Deleted(3, 100))


def test_a_queue_without_a_name_tells_of_no_deletion(tmp_path: Path) -> None:
    Generation(str(tmp_path), "t").store_deleted(3, 100)

    assert list(tmp_path.iterdir()) == []


def test_an_older_deletion_is_not_written_over_a_newer_one(tmp_path: Path) -> None:
    generation = Generation(str(tmp_path), "t")
    name = generation.ensure()
    generation.store_deleted(3, 100)

    generation.store_deleted(2, 500)

    assert read_file(tmp_path) == (name, Deleted(3, 100))
    assert generation.last_deleted == (3, 100)
