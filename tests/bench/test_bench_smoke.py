"""Tiny runs of the load generator against our own daemon: the numbers mean nothing, that they
come out whole does.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 50

pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)


def start_bench(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments],
        cwd=REPOSITORY,
        # Every daemon has its data below TMPDIR, so its command line names the test.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_bench(tmp_path: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, the printed table, the JSON document."""
    result = tmp_path / "result.json"
    process = start_bench(tmp_path, *arguments, "--json", str(result))
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert result.exists(), errors
    return process.returncode, output, json.loads(result.read_text())


def processes_naming(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if text in command:
            found.append(command)
    return found


def test_tiny_run_measures_every_message(tmp_path: Path) -> None:
    scenarios = "mpub/200B,sub/200B,pubsub,disk-sub"

    status, output, document = run_bench(
        tmp_path, "--quick", "--scenario", scenarios, "--messages", "4000", "--seconds", "10"
    )

    assert status == 0, output
    names = [case["name"] for case in document["cases"]]
    assert sorted(names) == sorted(scenarios.split(","))
    for case in document["cases"]:
        assert case["errors"] == []
        assert case["notes"] == []
        metrics = case["medians"]["ours"]
        assert metrics["messages"] >= 4000
        assert metrics["messages_per_s"] > 0
        assert metrics["client_cpu_us_per_message"] > 0
        assert case["name"] in output
    assert document["daemons"]["ours"]["version"]
    assert document["machine"]["cores"] >= 1


def test_latency_percentiles_are_ordered(tmp_path: Path) -> None:
    status, output, document = run_bench(
        tmp_path, "--quick", "--scenario", "latency", "--seconds", "0.5"
    )

    assert status == 0, output
    metrics = document["cases"][0]["medians"]["ours"]
    names = ["p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms"]
    latencies = [metrics[name] for name in names]
    assert latencies == sorted(latencies)
    assert latencies[0] > 0


def test_two_daemons_take_turns_and_get_a_ratio(tmp_path: Path) -> None:
    status, output, document = run_bench(
        tmp_path,
        *("--quick", "--scenario", "mpub/10B,memory", "--messages", "20000", "--rounds", "2"),
        *("--against", f"{sys.executable} -m nsqd"),
    )

    assert status == 0, output
    for case in document["cases"]:
        assert {label: len(rounds) for label, rounds in case["rounds"].items()} == {
            "ours": 2,
            "other": 2,
        }
        assert case["ratios"]["messages_per_s"] > 0
    assert "ratio" in output.splitlines()[0]


def test_daemon_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    refuse = tmp_path / "refuse.py"
    refuse.write_text("raise SystemExit('no such luck')")

    status, output, document = run_bench(
        tmp_path, "--quick", "--scenario", "mpub/10B", "--ours", f"{sys.executable} {refuse}"
    )

    assert status == 1
    assert "no such luck" in output
    assert "no such luck" in document["cases"][0]["errors"][0]


def test_ctrl_c_ends_the_daemon_and_the_workers(tmp_path: Path) -> None:
    process = start_bench(tmp_path, "--scenario", "pub-sync/1", "--seconds", "40")
    wait_until(
        lambda: any("--tcp-address" in command for command in processes_naming(str(tmp_path)))
    )

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 130
    assert processes_naming(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_unknown_scenario_is_refused(tmp_path: Path) -> None:
    process = start_bench(tmp_path, "--scenario", "mpub,frobnicate")
    _, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 2
    assert "frobnicate" in errors


def test_another_nsqd_runs_its_own_code(tmp_path: Path) -> None:
    """A checkout of another day is measured, not this one under its name."""
    other = tmp_path / "other"
    other.write_text('#!/bin/sh\necho "python path: <$PYTHONPATH>" >&2\nexit 1\n')
    other.chmod(0o755)
    process = start_bench(tmp_path, "--scenario", "pub-sync/1", "--quick", "--against", str(other))
    output, errors = process.communicate(timeout=TIMEOUT_S)

    assert str(Path(__file__).parents[2]) not in (output + errors).partition("python path: ")[2]
    assert "python path: <" in output + errors
