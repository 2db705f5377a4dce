"""Values of options: times, sizes."""

import time

import pytest

from spark_jobs.option_values import parse_size, parse_time_ns


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-02", 86400 * 10**9),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.000001", 1000),
        ("1760000000", 1760000000 * 10**9),
        ("1760000000001", 1760000000001 * 10**6),
        ("1760000000000002", 1760000000000002 * 10**3),
        ("1760000000000000003", 1760000000000000003),
        ("20251009", 1759968000 * 10**9),
    ],
)
def test_a_time_is_a_date_or_a_number_in_any_unit(text: str, time_ns: int) -> None:
    assert parse_time_ns("since", text) == time_ns


@pytest.mark.parametrize("text", ["90m", "-90m", "5400s"])
def test_a_duration_is_a_time_before_now(text: str) -> None:
    until_ns = parse_time_ns("until", text)

    assert abs(time.time_ns() - 5400 * 10**9 - until_ns) < 60 * 10**9


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("64m", 64 << 20), ("1 GiB", 1 << 30)])
def test_a_size_has_a_unit_or_none(text: str, size: int) -> None:
    assert parse_size("splitBytes", text) == size
