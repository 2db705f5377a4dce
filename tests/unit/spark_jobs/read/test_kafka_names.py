"""Options with the names of spark-sql-kafka mean what they mean there."""

import pytest

from spark_jobs.read.options import Origin, ReadOptions, parse_read_options

OFFSETS = '{"version": 2, "end": {}, "begin": {}}'


def parse(**options: str) -> ReadOptions:
    return parse_read_options({"path": "x"} | options)


def parse_stream(**options: str) -> ReadOptions:
    return parse_read_options({"path": "x"} | options, is_stream=True)


def test_names_that_mean_the_same_as_ours() -> None:
    options = parse_stream(subscribe="a,b", maxOffsetsPerTrigger="7", minPartitions="3")

    assert options.topics == ("a", "b")
    assert options.exact_topics == ["a", "b"]
    assert options.max_rows_per_trigger == 7
    assert options.min_partitions == 3


def test_a_pattern_is_a_regular_expression_of_the_whole_name() -> None:
    options = parse(subscribePattern="orders|pay.*")

    assert options.selects("orders", None)
    assert options.selects("payments", "c")
    assert not options.selects("my.orders", None)
    assert options.exact_topics == []


@pytest.mark.parametrize(
    ("given", "origin", "is_at_end"),
    [
        ({"startingOffsets": "earliest"}, Origin.EARLIEST, False),
        ({"startingOffsets": "latest"}, Origin.LATEST, True),
        ({"startingOffsets": "latest", "from": "archive"}, Origin.ARCHIVE, True),
        ({"startingOffsets": "earliest", "from": "archive"}, Origin.ARCHIVE, False),
    ],
)
def test_where_a_stream_starts(given: dict[str, str], origin: Origin, *, is_at_end: bool) -> None:
    options = parse_stream(**given)

    assert (options.origin, options.starts_at_end) == (origin, is_at_end)


def test_times_are_milliseconds_as_in_kafka() -> None:
    batch = parse(startingTimestamp="1790000000000", endingTimestamp="1790000001000")
    stream = parse_stream(startingTimestamp="1790000000000")

    assert (batch.since_ns, batch.until_ns) == (1790000000 * 10**9, 1790000001 * 10**9)
    assert (stream.since_ns, stream.start_ns) == (None, 1790000000 * 10**9)


def test_offsets_as_json_are_kept() -> None:
    options = parse(startingOffsets=OFFSETS, endingOffsets=OFFSETS)

    assert options.start_offsets == options.end_offsets == OFFSETS
    assert parse(endingOffsets="latest").end_offsets is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "a", "topic": "b"}, "mean the same"),
        ({"subscribe": "a*"}, "names of topics"),
        ({"subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        ({"subscribePattern": "("}, "is a regular expression"),
        ({"startingOffsets": "latest"}, "is for streams"),
        ({"startingOffsets": "first"}, "earliest, latest or offsets as JSON, not 'first'"),
        ({"startingOffsets": "earliest", "from": "backlog"}, "exclude each other"),
        ({"endingOffsets": "earliest"}, "latest or offsets as JSON"),
        ({"minPartitions": "0"}, "is a number from 1"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse(**given)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ValueError, match="a stream has no end"):
        parse_stream(endingOffsets="latest")
