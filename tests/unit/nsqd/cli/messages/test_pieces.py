"""The input of `nsq pub`."""

import json
import random

import pytest

from nsqd.cli.messages.pieces import Splitter, Unframer, fill_template, open_envelope
from nsqd.cli.output import CliError


@pytest.mark.parametrize("delimiter", [b"\n", b",", b"\0", b"--"])
def test_any_cut_gives_the_same_pieces(delimiter: bytes) -> None:
    pieces = [b"one", b"", b"two", b"", b"", b"three" * 100]
    data = delimiter.join(pieces)
    choose = random.Random(1)

    for _ in range(300):
        splitter = Splitter(delimiter)
        cuts = sorted(choose.sample(range(len(data)), 5))
        found = []
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            found += splitter.feed(data[start:end])
        found += splitter.finish()
        assert found == [b"one", b"two", b"three" * 100]
        assert splitter.empty_count == 3


def test_a_last_piece_without_delimiter_is_whole() -> None:
    splitter = Splitter(b"\n")

    assert splitter.feed(b"abc\nxyz") == [b"abc"]
    assert splitter.finish() == [b"xyz"]


def test_frames_bring_every_byte_back() -> None:
    bodies = [b"a\nb\0c", b"\xff" * 300, b"x"]
    data = b"".join(len(body).to_bytes(4) + body for body in bodies)
    unframer = Unframer()

    found = [body for index in range(len(data)) for body in unframer.feed(data[index : index + 1])]

    assert found == bodies
    assert unframer.finish() == []


def test_a_frame_that_is_none_is_an_error() -> None:
    with pytest.raises(CliError):
        Unframer().feed(b"\xff\xff\xff\xff")
    cut = Unframer()
    cut.feed(b"\0\0\0\x05ab")
    with pytest.raises(CliError):
        cut.finish()


def test_templates_are_filled_in() -> None:
    bodies = list(fill_template('{"n": {n}, "id": "{uuid}", "t": {now}}', 3))

    assert [json.loads(body)["n"] for body in bodies] == [1, 2, 3]
    assert len({json.loads(body)["id"] for body in bodies}) == 3


def test_an_envelope_is_opened() -> None:
    assert open_envelope(b'{"body": "h\\u00e4"}') == "hä".encode()
    assert open_envelope(b'{"body_base64": "/w=="}') == b"\xff"
    for line in (b"no", b"{}", b"[]", b'{"body_base64": "?"}'):
        with pytest.raises(CliError):
            open_envelope(line)
