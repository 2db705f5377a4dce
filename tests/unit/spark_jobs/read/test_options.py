"""Options are refused with a reason, never ignored."""

import pytest

from spark_jobs.read.columns import MESSAGE_COLUMNS
from spark_jobs.read.options import Mode, Origin, Table, parse_read_options


def test_without_options_the_backlog_is_read() -> None:
    options = parse_read_options({"path": "/data"})

    assert options.paths == ("/data",)
    assert options.origin is Origin.BACKLOG
    assert options.mode is Mode.PERMISSIVE
    assert options.table is Table.MESSAGES
    assert options.columns == MESSAGE_COLUMNS
    assert options.fails_on_data_loss
    assert not options.includes_bad
    assert options.limits.max_record_bytes == 1024 * 1024 + 26


def test_names_of_options_and_values_ignore_case() -> None:
    options = parse_read_options({"PATH": "/d", "FailOnDataLoss": "FALSE", "mode": "failfast"})

    assert not options.fails_on_data_loss
    assert options.mode is Mode.FAILFAST


def test_paths_come_as_a_list() -> None:
    assert parse_read_options({"paths": '["/a", "/b,c"]'}).paths == ("/a", "/b,c")


@pytest.mark.parametrize(
    ("topic", "channel", "selected"),
    [
        (None, None, {"orders", "orders:a", "orders:b", "pay", "pay:a"}),
        ("orders", None, {"orders", "orders:a", "orders:b"}),
        ("o*,pay", "a", {"orders:a", "pay:a"}),
        ("*", "*", {"orders:a", "orders:b", "pay:a"}),
        ("*", "", {"orders", "pay"}),
        ("orders", ",a", {"orders", "orders:a"}),
        ("Orders", None, set()),
    ],
)
def test_topic_and_channel_select_queues(
    topic: str | None, channel: str | None, selected: set[str]
) -> None:
    given = {"path": "/d", "topic": topic, "channel": channel}
    options = parse_read_options({name: text for name, text in given.items() if text is not None})
    queues = [
        ("orders", None),
        ("orders", "a"),
        ("orders", "b"),
        ("pay", None),
        ("pay", "a"),
    ]

    found = {
        f"{topic}:{channel}" if channel else topic
        for topic, channel in queues
        if options.selects(topic, channel)
    }

    assert found == selected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs the path"),
        ({"path": "/d", "topics": "x"}, "no option 'topics'; did you mean 'topic'?"),
        ({"path": "/d", "zzz": "x"}, "no option 'zzz': path, topic"),
        (
            {"path": "/d", "from": "end"},
            "archive, latest, not 'end'",
        ),
        ({"path": "/d", "mode": "x"}, "mode is one of PERMISSIVE, FAILFAST"),
        ({"path": "/d", "columns": "body,bytes"}, "no column 'bytes'"),
        ({"path": "/d", "columns": "body,body"}, "named twice"),
        ({"path": "/d", "columns": "is_bad"}, "needs the option includeBad=true"),
        ({"path": "/d", "since": "yesterday"}, "since is a time such as"),
        ({"path": "/d", "splitBytes": "0"}, "splitBytes is a size"),
        ({"path": "/d", "splitBytes": "-5"}, "splitBytes is a size"),
        ({"path": "/d", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is a number from 1"),
        ({"path": "/d", "maxMsgSize": "2g"}, "maxMsgSize is less than 2 GiB"),
        ({"path": "/d", "includeBad": "yes"}, "includeBad is true or false, not 'yes'"),
    ],
)
def test_a_wrong_option_is_refused_with_its_reason(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=r"format nsq|option|column") as caught:
        parse_read_options(options)

    assert text in str(caught.value)
