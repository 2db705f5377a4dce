"""A plugin of pytest that notes for coverage which test runs, and how long it takes to pass."""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from math import isfinite
from pathlib import Path

import coverage
import pytest

DURATIONS_VARIABLE = "REACH_DURATIONS"

_durations: defaultdict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    tracer = coverage.Coverage.current()
    assert tracer is not None
    tracer.switch_context(item.nodeid)
    result = yield
    tracer.switch_context("")  # what runs between tests reaches none
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _durations[report.nodeid] += report.duration if report.passed else float("inf")


def pytest_sessionfinish() -> None:
    passed = {test: duration for test, duration in _durations.items() if isfinite(duration)}
    Path(os.environ[DURATIONS_VARIABLE]).write_text(json.dumps(passed))
