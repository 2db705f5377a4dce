import pytest

from bench.daemon_process import parse_target
from bench.measure import Measurement
from bench.report import CaseReport, tables
from bench.scenarios import CASES, Limits, memory_needed, select_cases


def report_of(ours: list[dict[str, float]], other: list[dict[str, float]]) -> CaseReport:
    report = CaseReport(CASES[0])
    for metrics in ours:
        report.add("ours", Measurement(metrics))
    for metrics in other:
        report.add("other", Measurement(metrics))
    return report


def test_medians_over_the_rounds() -> None:
    report = report_of([{"messages_per_s": rate} for rate in (10.0, 90.0, 20.0)], [])

    assert report.medians("ours") == {"messages_per_s": 20.0}
    assert report.ratios() == {}


def test_ratio_above_one_always_means_ours_is_better() -> None:
    ours = {"messages_per_s": 200.0, "p99_ms": 1.0, "rss_bytes_per_message": 100.0}
    other = {"messages_per_s": 100.0, "p99_ms": 4.0, "rss_bytes_per_message": 150.0}

    ratios = report_of([ours], [other]).ratios()

    assert ratios == {"messages_per_s": 2.0, "p99_ms": 4.0, "rss_bytes_per_message": 1.5}


def test_spread_is_shown_and_empty_columns_are_not() -> None:
    report = report_of([{"messages_per_s": 90.0}, {"messages_per_s": 110.0}], [])

    heading, row = tables([report]).splitlines()

    assert heading.split() == ["case", "daemon", "msg/s", "spread"]
    assert row.split()[1:] == ["ours", "100", "20%"]


def test_a_round_that_went_to_disk_is_remarked_once() -> None:
    report = CaseReport(CASES[0])
    for _ in range(2):
        report.add("ours", Measurement({"messages_per_s": 1.0}, ["5 messages went to disk"]))

    assert tables([report]).count("5 messages went to disk") == 1


def test_address_and_command_are_told_apart() -> None:
    assert parse_target("other", "127.0.0.1:4150").http == ("127.0.0.1", 4151)
    assert parse_target("other", "127.0.0.1:4150:5000").http == ("127.0.0.1", 5000)
    assert parse_target("other", "nsqd --verbose").command == ("nsqd", "--verbose")
    with pytest.raises(ValueError, match="no command"):
        parse_target("other", " ")


def test_scenario_and_case_names_select() -> None:
    names = [case.name for case in select_cases("sub/1KB,pub-sync", Limits())]

    assert names == ["pub-sync/1", "pub-sync/8", "sub/1KB"]


def test_memory_cases_get_memory_for_all_their_messages() -> None:
    for case in select_cases(None, Limits(messages=123_456)):
        needed = memory_needed(case)
        if needed is not None:
            assert needed >= 123_456
            assert case.flags == (f"--mem-queue-size={needed}",)
