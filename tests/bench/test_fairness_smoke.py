"""Short runs of `python -m bench fairness` against our own daemon."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
# Two hundred times what is promised: it finds a loop that is held, on the busiest of machines.
MOST_WAIT_MS = 2000.0

pytestmark = pytest.mark.timeout(TIMEOUT_S + 10)


def run_fairness(tmp_path: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, the printed table, the JSON document."""
    result = tmp_path / "result.json"
    process = subprocess.run(
        [sys.executable, "-m", "bench", "fairness", *arguments, "--json", str(result)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert result.exists(), process.stderr
    return process.returncode, process.stdout, json.loads(result.read_text())


def test_no_client_waits_seconds_for_a_greedy_one(tmp_path: Path) -> None:
    rows = "nop,fin,dpub-200k,pub,mpub-million,snappy-empty,deflate-nop"

    status, output, document = run_fairness(tmp_path, "--quick", "--rows", rows)

    assert status == 0, output
    assert [row["name"] for row in document["rows"]] == ["idle", *rows.split(",")]
    for row in document["rows"]:
        assert row["errors"] == []
        assert row["pings"]["ours"] > 100
        assert 0 < row["ms"]["ours"]["max"] < MOST_WAIT_MS
        assert row["name"] == "idle" or row["load_per_s"]["ours"] > 0


def test_unknown_row_is_refused() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "bench", "fairness", "--rows", "frobnicate"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert process.returncode == 2
    assert "frobnicate" in process.stderr


def test_pings_can_wait_for_their_delivery(tmp_path: Path) -> None:
    status, output, document = run_fairness(tmp_path, "--quick", "--deliver", "--rows", "rdy")

    assert status == 0, output
    assert document["settings"]["deliver"]
    assert all(row["pings"]["ours"] > 100 for row in document["rows"])


def test_backlogs_and_crowds_are_played_whole(tmp_path: Path) -> None:
    rows = "timeout-1m,deferred,empty-memory,delete-disk,unpause,reconnect,new-topics,topics-create"

    status, output, document = run_fairness(tmp_path, "--quick", "--rows", rows)

    assert status == 0, output
    assert {row["name"] for row in document["rows"]} == {"idle", *rows.split(",")}
    assert all(row["errors"] == [] for row in document["rows"])
