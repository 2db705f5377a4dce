from array import array

import pytest

from bench.fairness.measuring import Delays
from bench.fairness.rows import IDLE, ROWS, select_rows
from bench.fairness.table import RowReport, above_idle, is_over, table


def report_of(name: str, *delays_ms: float) -> RowReport:
    report = RowReport(select_rows(name)[-1])
    report.add("ours", Delays(array("q", [int(d * 1e6) for d in delays_ms]), 100, 2.0))
    return report


def test_delays_count_above_the_idle_daemon() -> None:
    idle, flood = report_of(IDLE, 1.0, 2.0), report_of("nop", 1.0, 14.0)

    above = above_idle(flood, idle, "ours")

    assert above == {"p99.9": 12.0, "max": 12.0}
    assert is_over(above)
    assert not is_over(above_idle(idle, idle, "ours"))


def test_a_row_over_the_bar_is_marked_in_the_table() -> None:
    reports = [report_of(IDLE, 1.0), report_of("nop", 500.0), report_of("pub", 2.0)]

    _, idle, nop, pub = table(reports, ["ours"]).splitlines()

    assert idle.split()[:3] == ["idle", "ours", "1.00"]
    assert "OVER" in nop
    assert "OVER" not in pub
    assert "50" in pub.split()


def test_rounds_are_put_together() -> None:
    report = report_of("nop", 1.0)

    report.add("ours", Delays(array("q", [3_000_000]), 100, 2.0))

    assert report.milliseconds("ours")["max"] == 3.0
    assert len(report.delays_ns["ours"]) == 2


def test_the_idle_daemon_is_always_measured_first() -> None:
    assert [row.name for row in select_rows("pub,nop")] == [IDLE, "nop", "pub"]
    assert select_rows(None) == list(ROWS)
    with pytest.raises(ValueError, match="frobnicate"):
        select_rows("frobnicate")


def test_row_names_are_unique() -> None:
    names = [row.name for row in ROWS]

    assert len(names) == len(set(names))
