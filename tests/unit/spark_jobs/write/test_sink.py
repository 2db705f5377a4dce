"""Rows become commands: framed right, cut at the limits, in order."""

import struct
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from spark_jobs.write import sink
from spark_jobs.write.options import parse_sink_options
from spark_jobs.write.publisher import Command, PublishError, encode_mpub
from spark_jobs.write.sink import (
    Published,
    check_sink_schema,
    commands_of,
    frame_bodies,
    publish_batches,
)

bodies_lists = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=50)


def options(**more: str) -> dict[str, str]:
    return {"addresses": "127.0.0.1:4150"} | more


def decode(data: bytes) -> tuple[str, list[bytes]]:
    """The topic and bodies of an MPUB, as nsqd reads it."""
    line, _, rest = data.partition(b"\n")
    verb, topic = line.decode().split(" ")
    assert verb == "MPUB"
    size, count = struct.unpack_from(">ii", rest)
    assert size == len(rest) - 4
    bodies = []
    position = 8
    for _ in range(count):
        (length,) = struct.unpack_from(">i", rest, position)
        bodies.append(rest[position + 4 : position + 4 + length])
        position += 4 + length
    assert position == len(rest)
    return topic, bodies


@given(bodies_lists, st.integers(0, 3))
def test_bodies_are_framed_by_their_sizes(bodies: list[bytes], skipped: int) -> None:
    array = pa.array([b"skipped"] * skipped + bodies).slice(skipped)

    framed, ends = frame_bodies(array)

    assert framed[: ends[-1]] == b"".join(struct.pack(">i", len(b)) + b for b in bodies)
    assert ends.tolist()[-1] == sum(len(b) + 4 for b in bodies)


@given(bodies_lists, st.integers(1, 20), st.integers(1, 200))
def test_batches_keep_the_limits(bodies: list[bytes], batch_size: int, batch_bytes: int) -> None:
    parsed = parse_sink_options(
        options(topic="t", batchSize=str(batch_size), batchBytes=str(batch_bytes))
    )
    batch = pa.record_batch({"body": pa.array(bodies)})

    commands = [command for _, command in commands_of(batch, parsed)]

    decoded = [decode(command.data)[1] for command in commands]
    assert [body for part in decoded for body in part] == bodies
    assert [command.message_count for command in commands] == [len(part) for part in decoded]
    for part in decoded:
        assert len(part) <= batch_size
        assert len(part) == 1 or sum(len(body) + 4 for body in part) <= batch_bytes


def test_rows_are_sorted_by_topic_and_delay() -> None:
    batch = pa.record_batch(
        {
            "topic": pa.array(["a", "b", "a", "b"]),
            "body": pa.array(["1", "2", "3", "4"]),
            "defer_ms": pa.array([None, 5000, 0, -3], pa.int32()),
        }
    )

    found = [
        (topic, command.data)
        for topic, command in commands_of(batch, parse_sink_options(options()))
    ]

    assert found == [
        ("a", encode_mpub("a", 2, b"\0\0\0\x011\0\0\0\x013").data),
        ("b", b"DPUB b 5000\n\0\0\0\x012"),
        ("b", encode_mpub("b", 1, b"\0\0\0\x014").data),
    ]


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ("x int", "t", "needs a column body of type binary or string; it is not there"),
        ("body int", "t", "needs a column body of type binary or string; it is int"),
        ("body string", None, "needs the option topic or a column topic"),
        ("body string, topic int", None, "needs a column topic of type string"),
        ("body string, defer_ms string", "t", "needs a column defer_ms of type long"),
    ],
)
def test_a_frame_that_cannot_be_published_is_refused(
    columns: str, topic: str | None, text: str
) -> None:
    parsed = parse_sink_options(options() if topic is None else options(topic=topic))
    types = {"int": IntegerType(), "string": StringType(), "binary": BinaryType()}
    fields = [each.split(" ") for each in columns.split(", ")]
    schema = StructType([StructField(name, types[kind]) for name, kind in fields])

    with pytest.raises(ValueError, match=text):
        check_sink_schema(schema, parsed)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [b"x", b""], "topic": ["t", "t"]}, "no body, and NSQ has no empty messages"),
        ({"body": [b"x", None], "topic": ["t", "t"]}, "no body, and NSQ has no empty messages"),
        ({"body": [b"x", b"y"], "topic": ["t", None]}, "a row has no topic"),
        ({"body": [b"x", b"y"], "topic": ["t", "t\nNOP"]}, "not the name of a topic"),
    ],
)
def test_a_row_that_cannot_be_published_is_refused(
    columns: dict[str, list[object]], text: str
) -> None:
    with pytest.raises(PublishError, match=text):
        list(commands_of(pa.record_batch(columns), parse_sink_options(options())))


class RecordingPublisher:
    """A publisher that sends no bytes; notes when each command came."""

    def __init__(self, *_: object, first_address: int) -> None:
        assert first_address == 0
        self.published_count = 0
        self.resent_count = 0
        self.moments_s: list[float] = []
        made.append(self)

    def publish(self, command: Command) -> None:
        self.moments_s.append(time.monotonic())
        self.published_count += command.message_count

    def flush(self) -> None:
        assert self.published_count

    def close(self) -> None:
        self.moments_s.append(-1)


made: list[RecordingPublisher] = []


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(sink, "Publisher", RecordingPublisher)
    made.clear()


@pytest.mark.usefixtures("fake_time")
def test_a_task_keeps_its_rate() -> None:
    parsed = parse_sink_options(options(topic="t", maxRate="40", batchSize="5"))
    batch = pa.record_batch({"body": pa.array([b"x"] * 15)})

    published = publish_batches(iter([batch]), parsed)

    [publisher] = made
    assert published == Published(15, 0, {"t": 15})
    # Five messages use up an eighth of a second; the last moment is that of closing.
    assert publisher.moments_s == [100, 100.125, 100.25, -1]


@pytest.mark.usefixtures("fake_time")
def test_a_task_without_rows_does_not_connect() -> None:
    assert publish_batches(iter(()), parse_sink_options(options(topic="t"))) == Published()
    assert made == []
