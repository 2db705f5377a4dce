"""Offsets as a checkpoint holds them: both versions, and documents that are neither."""

import os
from pathlib import Path

import pytest

from spark_jobs.read.offsets import Mark, Position, StreamOffset


def test_an_offset_survives_the_checkpoint() -> None:
    key, other = ("node", "t"), ("node", "t:ch")
    offset = StreamOffset(
        {key: Mark(Position(3, 100), "g:ab f:3:cd"), other: Mark(Position(0, 5))},
        {other: Position(0, 0)},
    )

    assert StreamOffset.from_json(offset.to_json()) == offset


def test_the_first_version_named_nodes_by_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    old = {"end": {str(tmp_path / "link"): {"t": "1:2"}}, "begin": {str(tmp_path): {"t": "0:0"}}}
    key = (f"path:{os.path.realpath(tmp_path)}", "t")

    offset = StreamOffset.from_json(old)

    assert offset.end == {key: Mark(Position(1, 2))}
    assert offset.begin == {key: Position(0, 0)}


def test_a_local_directory_is_known_by_its_path_also_if_a_uri_named_it() -> None:
    entry = {"t": {"at": "0:5", "id": ""}}
    document = {"version": 2, "end": {"path:file:///var/a%23b": entry}, "begin": {}}

    assert list(StreamOffset.from_json(document).end) == [("path:/var/a#b", "t")]


def test_a_later_version_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"offsets of version 3, .* use the newer nsqd"):
        StreamOffset.from_json({"version": 3, "end": {}, "begin": {}})


@pytest.mark.parametrize("entry", ["x", {"at": "1"}, {"at": "1:2:3", "id": ""}, {"at": "1:2"}])
def test_a_strange_document_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="not an offset of format nsq"):
        StreamOffset.from_json({"version": 2, "end": {"n": {"t": entry}}, "begin": {}})
