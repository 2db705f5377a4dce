import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskqueue.layout import list_queues
from nsqd.broker import metadata
from nsqd.broker.metadata import ChannelRecord, MetadataError, TopicRecord


def test_nsqd_dat_is_compact_json_with_version_last() -> None:
    #
    topics = [TopicRecord("t", False, (ChannelRecord("c", True),))]

    text = metadata.encode(topics, "1.3.0")

    assert text == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]}],'
        b'"version":"1.3.0"}'
    )


def test_empty_lists_are_written_as_null() -> None:
    #
    assert metadata.encode([], "1.3.0") == b'{"topics":null,"version":"1.3.0"}'
    assert metadata.encode([TopicRecord("t", True, ())], "1.3.0") == (
        b'{"topics":[{"name":"t","paused":true,"channels":null}],"version":"1.3.0"}'
    )


@pytest.mark.parametrize(
    "text",
    [
        b"null",
        b"{}",
        b'{"topics":null}',
        b'{"topics":[]}',
        b' {"topics" : [] , "version":"0.3"}\n',
        b'{"version":7,"topics":[],"more":{}}',
    ],
)
def test_no_topics_may_be_written_in_many_ways(text: bytes) -> None:
    #
    assert metadata.decode(text) == []


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        (b'{"topics":[{"name":"t"}]}', [TopicRecord("t", False, ())]),
        (
            b'{"topics":[{"name":"t","channels":[],"paused":null}]}',
            [TopicRecord("t", False, ())],
        ),
        (
            b'{"topics":[{"channels":[{"name":"c"}],"name":"t","paused":true,"x":1}]}',
            [TopicRecord("t", True, (ChannelRecord("c", False),))],
        ),
        (
            b'{"topics":[{"name":"t","channels":null},{"name":"u","channels":[{"name":"c",'
            b'"paused":true}]}]}',
            [TopicRecord("t", False, ()), TopicRecord("u", False, (ChannelRecord("c", True),))],
        ),
        # Without a name, or with null, it is the empty name, which is invalid and skipped.
        (b'{"topics":[{},{"name":null}]}', [TopicRecord("", False, ())] * 2),
        (
            b'{"topics":[{"name":"t","channels":[{}]}]}',
            [TopicRecord("t", False, (ChannelRecord("", False),))],
        ),
    ],
)
def test_files_of_other_versions_are_read(text: bytes, topics: list[TopicRecord]) -> None:
    #
    assert metadata.decode(text) == topics


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"   ",
        b"{",
        b"[]",
        b"1",
        b'"text"',
        b"{} {}",
        b"\xff\xfe",
        b'{"topics":{}}',
        b'{"topics":[1]}',
        b'{"topics":["t"]}',
        b'{"topics":[null]}',
        b'{"topics":[{"name":1}]}',
        b'{"topics":[{"name":"t","paused":"no"}]}',
        b'{"topics":[{"name":"t","channels":[7]}]}',
        b'{"topics":[{"name":"t","channels":{"name":"c"}}]}',
        b'{"topics":[{"name":"t","channels":[{"name":"c","paused":1}]}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_of_the_shape_is_refused(text: bytes) -> None:
    #
    with pytest.raises(ValueError, match=r"."):
        metadata.decode(text)


names = st.text(alphabet="abc.-_#é", min_size=1, max_size=5)
records = st.lists(
    st.builds(
        TopicRecord,
        names,
        st.booleans(),
        st.lists(st.builds(ChannelRecord, names, st.booleans()), max_size=3).map(tuple),
    ),
    max_size=4,
)


@given(records)
def test_what_is_written_is_read_again(topics: list[TopicRecord]) -> None:
    assert metadata.decode(metadata.encode(topics, "1.3.0")) == topics


def test_a_missing_file_is_a_fresh_start(tmp_path: Path) -> None:
    #
    assert metadata.load(tmp_path) == []


def test_saving_replaces_the_file_whole(tmp_path: Path) -> None:
    #
    path = tmp_path / "nsqd.dat"
    metadata.save(tmp_path, b'{"topics":[{"name":"a"}]}')
    metadata.save(tmp_path, b'{"topics":[{"name":"b"}]}')

    assert metadata.load(tmp_path) == [TopicRecord("b", False, ())]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata.save(tmp_path, b"{}")

    def refuse(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            metadata.save(tmp_path, b'{"topics":[{"name":"a"}]}')

    assert metadata.load(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["nsqd.dat"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_file_that_cannot_be_parsed_is_fatal(tmp_path: Path, content: bytes) -> None:
    #
    path = tmp_path / "nsqd.dat"
    path.write_bytes(content)

    with pytest.raises(MetadataError) as caught:
        metadata.load(tmp_path)

    assert str(caught.value).startswith(f"failed to parse metadata in {path} - ")


def test_a_file_that_cannot_be_read_is_fatal(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.mkdir()

    with pytest.raises(MetadataError) as caught:
        metadata.load(tmp_path)

    assert str(caught.value).startswith(f"failed to read metadata from {path} - ")


def test_left_over_temporary_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat.12345.tmp").write_bytes(b"half of")

    assert metadata.load(tmp_path) == []


def write_segment(data_path: Path, name: str, content: bytes = b"records") -> None:
    (data_path / f"{name}.diskqueue.000003.dat").write_bytes(content)


def test_queues_with_messages_are_found_without_nsqd_dat(tmp_path: Path) -> None:
    for name in ("alone", "t", "t:a", "t:b", "only:channel"):
        write_segment(tmp_path, name)

    found = metadata.add_found([], list_queues(tmp_path))

    assert {(topic.name, channel.name) for topic in found for channel in topic.channels} == {
        ("t", "a"),
        ("t", "b"),
        ("only", "channel"),
    }
    assert {topic.name for topic in found} == {"alone", "t", "only"}


def test_what_nsqd_dat_knows_is_left_as_it_is(tmp_path: Path) -> None:
    known = [TopicRecord("t", True, (ChannelRecord("a", True),)), TopicRecord("u", False, ())]
    for name in ("t", "t:a", "t:new"):
        write_segment(tmp_path, name)

    found = metadata.add_found(known, list_queues(tmp_path))

    assert found == [*known, TopicRecord("t", True, (ChannelRecord("new", False),))]


@pytest.mark.parametrize(
    "name", ["x#ephemeral", "x#ephemeral:c", "t:c#ephemeral", "bad name", "!:c"]
)
def test_what_is_ephemeral_or_has_no_name_is_not_found(tmp_path: Path, name: str) -> None:
    write_segment(tmp_path, name)

    assert metadata.add_found([], list_queues(tmp_path)) == []


def test_a_queue_without_messages_is_found_by_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "t:c.diskqueue.meta.dat").write_text("0\n0,0\n0,0\n")

    [topic] = metadata.add_found([], list_queues(tmp_path))

    assert topic == TopicRecord("t", False, (ChannelRecord("c", False),))


def test_files_without_messages_are_not_found(tmp_path: Path) -> None:
    write_segment(tmp_path, "empty", b"")
    (tmp_path / "due.diskqueue.due").write_bytes(b"entries")
    (tmp_path / "bad.diskqueue.000000.dat.bad").write_bytes(b"records")

    assert metadata.add_found([], list_queues(tmp_path)) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink(os.devnull, path)])
def test_pipes_and_devices_are_refused_without_being_opened(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / metadata.FILE_NAME)

    with pytest.raises(MetadataError, match="not a file; move it away"):
        metadata.load(tmp_path)
