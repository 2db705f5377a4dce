"""The page: every section, bounds, and nothing of a message unescaped."""

import re

import pytest

from spark_jobs.jobs.report_page import render
from tests.spark.made_reports import figures, made_fleet_report, made_report

EVIL = '<script>alert("1")</script>\x00\ud800&amp;'


@pytest.mark.parametrize("queue_count", [0, 1, 100])
def test_every_queue_has_a_row_and_a_section(queue_count: int) -> None:
    page = render(made_report(queue_count))

    assert page.count("<details") == 2 * queue_count
    assert page.count('class="spark"') == queue_count
    assert ("There are no messages" in page) == (queue_count == 0)
    assert "http" not in page


def test_what_comes_from_messages_is_escaped() -> None:
    report = made_report(1)
    report.queues[0].topic = EVIL
    for rows in (report.poison, report.duplicates, report.bodies, report.fields):
        for row in rows:
            row["topic"] = EVIL
    report.poison[0]["body"] = report.poison[0]["id"] = EVIL
    report.fields[0]["path"] = EVIL
    report.fields[0]["top"] = [(EVIL, 1)]
    report.data_dirs = [EVIL]
    report.corrupt_count = 1
    report.corrupt_records = [
        {
            "topic": EVIL,
            "channel": None,
            "kind": EVIL,
            "reason": EVIL,
            "offset": None,
            "bytes": 7,
            "path": EVIL,
        }
    ]

    page = render(report)

    assert "<script>alert" not in page
    assert "\x00" not in page
    assert page.count("&lt;script&gt;alert(&#34;1&#34;)") > 8
    page.encode()


def test_many_queues_have_a_bound() -> None:
    page = render(made_report(1000))

    assert page.count('<details class="card" id=') == 200
    assert "Details of the 200 largest queues" in page


@pytest.mark.parametrize("queue_count", [3, 500])
def test_every_link_leads_to_a_section(queue_count: int) -> None:
    page = render(made_report(queue_count))

    links = re.findall('href="#(.*?)"', page)
    assert links
    assert set(links) == set(re.findall('<details class="card" id="(.*?)"', page))


def test_a_queue_without_messages_has_no_plots() -> None:
    report = made_report(2)
    empty = figures("empty", None, 1)
    empty.message_count = 0
    empty.oldest = empty.newest = None
    empty.over_time, empty.attempts, empty.sizes = [], [], []
    report.queues.append(empty)

    page = render(report)

    [section] = re.findall(r'id="q2">.*?</details>', page, re.DOTALL)
    assert "No messages." in section
    assert "<svg" not in section
    [row] = re.findall(r'<tr>\s*<td><a href="#q2">.*?</tr>', page, re.DOTALL)
    assert "<i>topic</i>" in row
    assert "<path" not in row


def test_rare_attempts_share_a_column() -> None:
    report = made_report(1)
    report.queues[0].attempts = [(number, 2) for number in range(1, 31)]

    page = render(report)

    assert "<title>24: 2</title>" in page
    assert "<title>25+: 12</title>" in page
    assert "<title>25: 2</title>" not in page


def test_sizes_that_do_not_occur_have_an_empty_column() -> None:
    report = made_report(1)
    report.queues[0].sizes = [(9, 1), (11, 2), (20, 3)]

    page = render(report)

    names = ["512: 1", "1k: 0", "2k: 2", "4k: 0", "1M: 3"]
    assert [name for name in names if f"<title>{name}</title>" in page] == names


def test_ages_places_growth_and_nodes() -> None:
    page = render(made_fleet_report(5))

    assert "3 days 4 hours" in page
    assert "drained in 1 day 15 hours" in page
    assert ">grows<" in page
    assert "250 ms <small>p99</small>" in page
    assert ">as it was<" in page
    assert "topics by age of the oldest" in page
    assert "1 torn, 1 missing" in page
    assert "<td colspan=8 class=bad>node 10.0.0.9:4151 is down</td>" in page
    assert "not seen" not in page


def test_what_a_directory_does_not_show_is_not_seen() -> None:
    page = render(made_report(5))

    assert "<b>not seen</b><span>memory, in flight, deferred</span>" in page
    assert "more per minute" not in page
    assert "<h2>Nodes" not in page


def test_one_topic_is_ranked_by_queue_and_one_queue_not_at_all() -> None:
    report = made_report(2)
    report.queues = [figures("t", "a", 1), figures("t", "b", 2)]

    assert "queues by messages" in render(report)
    assert "by messages" not in render(made_report(1))
